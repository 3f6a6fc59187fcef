"""A printed figure and the plan it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.inputs.hardware import Hardware
from simulator.inputs.known_devices import GPUS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.layer_time import layer_seconds
from simulator.predict.memory import activation_bytes, kept_layer_bytes, model_states, plan_memory
from simulator.predict.stages import stage_durations
from simulator.predict.step import step_cost

RATES = (
    "mfu",
    "tflops_per_gpu",
    "tokens_per_gpu",
    "model_tflops_per_gpu",
    "bytes_per_second",
    "part_of_ideal",
)


@dataclass(frozen=True)
class PublishedRow:
    """One printed figure and the plan it belongs to.

    Args:
        source, name: where it is printed, and for what.
        kind: ``"time"``, ``"memory"`` (of a run), ``"activations"`` or ``"states"`` (of a formula).
        quantity: ``"seconds"``, ``"mfu"``, ``"tflops_per_gpu"``, ``"model_tflops_per_gpu"`` and
            ``"tokens_per_gpu"`` (a second) of a step, ``"layer_seconds"``, ``"stage_seconds"`` of one microbatch,
            ``"peak_bytes"`` of tensors on the fullest rank, ``"layer_bytes"``, ``"stage_bytes"`` or ``"state_bytes"``.
        printed: the figure, in seconds, a fraction, TFLOP/s, tokens a second or bytes.
        gpu: the device's name.
        hardware: the device in another cluster than the one that its file describes.
        group: rows that have one target together.
        fitted: whether numbers of the device were fitted to this row; otherwise it was only compared.
        predict: computes what is neither a step, a stage, a layer nor its bytes.
        peer: another simulator, and the same quantity as its own authors print it.
    """

    source: str
    name: str
    kind: str
    quantity: str
    printed: float
    shape: ModelShape
    plan: Plan
    gpu: str = "a100-80gb"
    group: str = "A100 time"
    fitted: bool = True
    predict: Callable[[], float] | None = None
    hardware: Hardware | None = None
    peer: tuple[str, float] | None = None

    def predicted(self) -> float:
        """The same quantity from the simulator."""
        if self.predict is not None:
            return self.predict()
        shape, hardware = self.shape, self.hardware or GPUS[self.gpu]
        plan = self.plan.on(hardware)
        match self.quantity:
            case "layer_seconds":
                return sum(layer_seconds(shape, plan, hardware).parts.values())
            case "stage_seconds":
                stages = stage_durations(shape, plan, hardware)
                work = stages.forward, stages.backward_input, stages.backward_weight
                return sum(map(sum, work)) / plan.pp
            case "layer_bytes":
                return kept_layer_bytes(shape, plan)
            case "stage_bytes":
                return activation_bytes(shape, plan)
            case "state_bytes":
                return model_states(7.5e9, plan).total
            case "peak_bytes":
                return max(rank.total for rank in plan_memory(shape, plan))
        cost = step_cost(shape, plan, hardware)
        if self.quantity == "tokens_per_gpu":
            return plan.global_batch * shape.sequence / plan.ranks / cost.seconds
        if self.quantity == "model_tflops_per_gpu":
            return cost.model_flops / cost.seconds / plan.ranks / 1e12
        return getattr(cost, self.quantity)

    def error(self, predicted: float | None = None) -> float:
        """Relative error of our prediction, or of another one; of a rate, that of the time it stands for."""
        ratio = (self.predicted() if predicted is None else predicted) / self.printed
        return (1 / ratio if self.quantity in RATES else ratio) - 1
