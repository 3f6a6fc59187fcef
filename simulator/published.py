"""What papers print, beside what the simulator predicts for the same plan.

Each row names its source. All were run on A100-80GB with 16-bit precision; vocabulary 51,200 throughout. The
constants of that GPU in ``simulator.inputs.hardware`` are one rounded compromise for the rows of arXiv:2104.04473 and
arXiv:2205.05198: no row has a constant of its own. The times of arXiv:2401.10241 played no part in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.inputs.hardware import GPUS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.layer_time import layer_seconds
from simulator.predict.memory import activation_bytes, kept_layer_bytes, model_states
from simulator.predict.stages import stage_durations
from simulator.predict.step import step_cost

MEGATRON = "arXiv:2104.04473, table 1"
KORTHIKANTI = "arXiv:2205.05198"
ZERO = "arXiv:1910.02054, table 1"
A100 = GPUS["a100-80gb"]

TARGETS = {"time": (0.04, 0.10), "activations": (0.02, 0.02)}  # mean and worst absolute error


@dataclass(frozen=True)
class PublishedRow:
    """One printed figure and the plan it belongs to.

    Args:
        kind: ``"time"``, ``"activations"`` or ``"states"``.
        quantity: ``"seconds"`` and ``"mfu"`` and ``"tflops_per_gpu"`` of a step, ``"layer_seconds"``,
            ``"stage_seconds"`` of one microbatch, ``"layer_bytes"``, ``"stage_bytes"`` or ``"state_bytes"``.
        printed: the figure, in seconds, a fraction, TFLOP/s or bytes.
    """

    source: str
    name: str
    kind: str
    quantity: str
    printed: float
    shape: ModelShape
    plan: Plan

    def predicted(self) -> float:
        """The same quantity from the simulator."""
        shape, plan = self.shape, self.plan
        if self.quantity == "layer_seconds":
            return sum(layer_seconds(shape, plan, A100).parts.values())
        if self.quantity == "stage_seconds":
            stages = stage_durations(shape, plan, A100)
            return sum(map(sum, (stages.forward, stages.backward_input, stages.backward_weight))) / plan.pp
        if self.quantity == "layer_bytes":
            return kept_layer_bytes(shape, plan)
        if self.quantity == "stage_bytes":
            return activation_bytes(shape, plan)
        if self.quantity == "state_bytes":
            return model_states(7.5e9, plan).total
        return getattr(step_cost(shape, plan, A100), self.quantity)

    def error(self) -> float:
        """Relative error; of a rate, that of the time it stands for."""
        ratio = self.predicted() / self.printed
        return (1 / ratio if self.quantity in ("mfu", "tflops_per_gpu") else ratio) - 1


def gpt(layers: int, hidden: int, heads: int, sequence: int = 2048) -> ModelShape:
    return ModelShape(layers, hidden, heads, vocab=51200, sequence=sequence)


GPT_22B, GPT_175B, GPT_530B = gpt(48, 6144, 64), gpt(96, 12288, 96), gpt(105, 20480, 128)
PRESENT = {"sequence_parallel": True, "recompute": "selective"}  # as the tables call the paper's own method
WAYS = {
    "baseline": {},
    "sequence parallelism": {"sequence_parallel": True},
    "full recomputation": {"recompute": "full"},
    "selective recomputation": {"recompute": "selective"},
    "selective + sequence": PRESENT,
}


def megatron_2021() -> Iterator[PublishedRow]:
    """End to end, full recomputation; microbatch and chunks from the authors' scripts (Megatron-LM, examples/sc21).

    Teraflops count recomputation. The last row is confirmed by the 502 petaFLOP/s on 3,072 GPUs of the abstract.
    """
    #   name, layers, hidden, heads, tp, pp, dp, global batch, microbatch, chunks, TFLOP/s per GPU
    table = [
        ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 16, 1, 137),
        ("7.5B", 36, 4096, 32, 4, 1, 32, 512, 16, 1, 142),
        ("18.4B", 40, 6144, 48, 8, 1, 32, 1024, 8, 1, 135),
        ("39.1B", 48, 8192, 64, 8, 2, 32, 1536, 4, 1, 138),
        ("145.6B", 80, 12288, 96, 8, 8, 24, 2304, 2, 2, 148),
        ("529.6B", 105, 20480, 128, 8, 35, 9, 2520, 1, 3, 163),
        ("1008B", 128, 25600, 160, 8, 64, 6, 3072, 1, 1, 163),
    ]
    for name, layers, hidden, heads, tp, pp, dp, batch, micro, chunks, tflops in table:
        plan = Plan(
            dp, tp, pp, micro_batch=micro, microbatches=batch // dp // micro, chunks=chunks, recompute="full"
        )
        yield PublishedRow(MEGATRON, name, "time", "tflops_per_gpu", tflops, gpt(layers, hidden, heads), plan)


def korthikanti_2022() -> Iterator[PublishedRow]:
    """One layer of the 22B model, and whole steps with full recomputation and with the paper's method."""
    for (way, options), milliseconds in zip(WAYS.items(), (19.6, 19.0, 27.2, 20.9, 20.3), strict=True):
        plan = Plan(tp=8, micro_batch=4, **options)
        source = f"{KORTHIKANTI}, table 4"
        yield PublishedRow(
            source, f"22B layer, {way}", "time", "layer_seconds", milliseconds / 1e3, GPT_22B, plan
        )
    small = {"tp": 8, "micro_batch": 4, "microbatches": 1}
    large = {"tp": 8, "pp": 8, "microbatches": 64, "chunks": 3}
    largest = {"tp": 8, "pp": 35, "dp": 8, "microbatches": 280, "chunks": 3}
    table = [  # the third row is the abstract's, on 2,240 GPUs
        ("22B", GPT_22B, small, "table 5", "seconds", 1.42, 1.10),
        ("175B", GPT_175B, large, "table 5", "seconds", 18.13, 13.75),
        ("530B", GPT_530B, largest, "abstract", "mfu", 0.421, 0.542),
    ]
    for name, shape, axes, where, quantity, full, present in table:
        source = f"{KORTHIKANTI}, {where}"
        recompute = Plan(**axes, recompute="full")
        yield PublishedRow(source, f"{name}, full recomputation", "time", quantity, full, shape, recompute)
        yield PublishedRow(
            source, f"{name}, present work", "time", quantity, present, shape, Plan(**axes, **PRESENT)
        )


def zero_bubble_2023() -> Iterator[PublishedRow]:
    """F + B + W of one microbatch, the mean over 8 stages whose ends have one layer less, sequence 1024."""
    table = [
        ("1.5B", 22, 2304, 24, 6, (18.522, 18.086, 9.337)),
        ("6.2B", 30, 4096, 32, 3, (29.718, 29.444, 19.927)),
    ]
    for name, layers, hidden, heads, micro, milliseconds in table:
        shape, middle = gpt(layers, hidden, heads, sequence=1024), (layers + 2) // 8
        plan = Plan(pp=8, micro_batch=micro, stage_layers=(middle - 1, *[middle] * 6, middle - 1))
        printed = sum(milliseconds) / 1e3
        yield PublishedRow(
            "arXiv:2401.10241, table 9", f"{name} stage", "time", "stage_seconds", printed, shape, plan
        )


def activations() -> Iterator[PublishedRow]:
    """Bytes that the paper's formulas give: table 2 for a layer, equation 6 for the first pipeline stage."""
    t, s = 8, 2048
    for name, shape, b in (("22B", GPT_22B, 4), ("175B", GPT_175B, 1), ("530B", GPT_530B, 1)):
        sbh, scores = s * b * shape.hidden, 5 * shape.heads * s / shape.hidden
        factors = (10 + 24 / t + scores / t, 34 / t + scores / t, 2, 10 + 24 / t, 34 / t)
        for (way, options), factor in zip(WAYS.items(), factors, strict=True):
            plan = Plan(tp=t, micro_batch=b, **options)
            source = f"{KORTHIKANTI}, table 2"
            yield PublishedRow(
                source, f"{name} layer, {way}", "activations", "layer_bytes", sbh * factor, shape, plan
            )
    for name, shape, p, v in (("175B", GPT_175B, 8, 3), ("530B", GPT_530B, 35, 3)):
        plan = Plan(tp=t, pp=p, chunks=v, **PRESENT)
        layers = 34 * s * shape.hidden * shape.layers / t * (1 + (p - 1) / (p * v))
        total = layers + s * shape.hidden * p / t
        source = f"{KORTHIKANTI}, section 4.3"
        yield PublishedRow(source, f"{name} first stage", "activations", "stage_bytes", total, shape, plan)


def zero_2019() -> Iterator[PublishedRow]:
    """Model states of 7.5 billion parameters; the paper cuts off some digits instead of rounding."""
    table = {
        1: (52.5, 35.6, 31.4, 30.4, 30.1),
        2: (41.3, 21.6, 16.6, 15.4, 15.1),
        3: (30, 7.5, 1.88, 0.47, 0.12),
    }
    for stage, cells in table.items():
        for ranks, gigabytes in zip((4, 16, 64, 256, 1024), cells, strict=True):
            plan, name = Plan(dp=ranks, zero=stage), f"7.5B, stage {stage}, {ranks} ranks"
            yield PublishedRow(ZERO, name, "states", "state_bytes", gigabytes * 1e9, GPT_22B, plan)


def published_rows() -> list[PublishedRow]:
    """Every row, in the order of the papers."""
    return [*megatron_2021(), *korthikanti_2022(), *zero_bubble_2023(), *activations(), *zero_2019()]
