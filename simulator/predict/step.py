"""One training step: microbatches through a pipeline, gradients over the data axis, the optimizer.

``step_cost`` adds up what the heaviest pipeline rank does; every part is named, and the parts add up to the step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.collective_time import collective_seconds, exposed
from simulator.predict.flops import hardware_flops, model_flops
from simulator.predict.kernel_time import HOST_LINK, memory_seconds
from simulator.predict.layer_time import LayerSeconds
from simulator.predict.memory import plan_memory
from simulator.predict.muon import muon_seconds
from simulator.predict.stages import UnitSeconds, run_schedule, unit_seconds

# All gradients that a rank keeps are scaled (read and written), checked and zeroed: four passes. Those that it updates
# with are then fp32: 4 bytes for the norm and 8 to clip.
GRADIENT_PASSES, OWN_GRADIENT_BYTES = 4, 12
# Bytes a second of the host's memory, for one device's share of an optimizer that lives there.
HOST_MEMORY = 100e9
# What a step's time is spent on, the same names for every plan.
PARTS = (
    "attention",
    "mlp",
    "norms",
    "recomputation",
    "embedding",
    "logits",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline",
    "bubble",
    "gradient_accumulation",
    "data_parallel",
    "optimizer",
    "offload",
)
# Parts of a stage's time that the engine is not asked about: they are the same in every schedule.
OUTSIDE = ("pipeline", "gradient_accumulation", "data_parallel")


@dataclass(frozen=True)
class StepCost:
    """The predicted step.

    Args:
        parts: seconds by what they are spent on, a name of ``PARTS``; they add up to the step.
        once: of these, the seconds that come once a step, after the last microbatch.
        model_flops, hardware_flops: of the whole step, on all ranks, without and with recomputation.
        peak_flops: of all ranks together.
        ranks: how many.
    """

    parts: dict[str, float]
    once: dict[str, float]
    model_flops: float
    hardware_flops: float
    peak_flops: float
    ranks: int

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: the part of the peak that the mathematics used."""
        return self.model_flops / self.seconds / self.peak_flops

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: recomputation counts as work."""
        return self.hardware_flops / self.seconds / self.peak_flops

    @property
    def tflops_per_gpu(self) -> float:
        """Hardware TFLOP/s on each device, as Megatron-LM reports it."""
        return self.hardware_flops / self.seconds / self.ranks / 1e12


def step_cost(shape: ModelShape, plan: Plan, hardware: Hardware) -> StepCost:
    """Predict one step of ``plan`` with ``plan.global_batch`` sequences."""
    plan = plan.on(hardware)
    units = unit_seconds(shape, plan, hardware)
    alike = plan.alike(shape)
    stages = {rank: stage_seconds(shape, plan, hardware, rank, units) for rank in set(alike)}
    totals = {rank: sum(parts.values()) for rank, parts in stages.items()}
    slowest = max(alike, key=totals.__getitem__)
    others = sum(totals[rank] for rank in alike) - totals[slowest]
    parts = {name: plan.microbatches * seconds for name, seconds in stages[slowest].items()}
    if plan.schedule == "1f1b" or (plan.schedule == "interleaved-1f1b" and plan.microbatches % plan.pp == 0):
        # A microbatch passes every other stage once before and after the steady state; a chunk is 1/v of a stage.
        # Even stages: (p - 1) / (v m) of the compute time (arXiv:2104.04473, section 2.2.2).
        parts["bubble"] = others / plan.chunks
    else:
        busy = sum(seconds for name, seconds in stages[slowest].items() if name not in OUTSIDE)
        makespan = run_schedule(shape, plan, hardware, units).makespan
        parts["bubble"] = max(0.0, makespan - plan.microbatches * busy)
    each = [(n, units.layers[kind]) for kind, n in plan.kinds_on(shape, slowest).items()]
    beside = sum(n * one.forward_seconds for n, one in each), sum(n * one.backward_seconds for n, one in each)
    once = {"data_parallel": _gradients(shape, plan, hardware, slowest, *beside)}
    once |= _optimizer(shape, plan, hardware, slowest)
    for name, seconds in once.items():
        parts[name] = parts.get(name, 0.0) + seconds
    batch = plan.global_batch
    return StepCost(
        parts={name: parts[name] for name in PARTS},
        once=once,
        model_flops=sum(model_flops(shape, batch).values()),
        hardware_flops=sum(hardware_flops(shape, plan, batch).values()),
        peak_flops=hardware.peak_flops * plan.ranks,
        ranks=plan.ranks,
    )


def stage_seconds(
    shape: ModelShape, plan: Plan, hardware: Hardware, rank: int, units: UnitSeconds | None = None
) -> dict[str, float]:
    """Forward and backward of one microbatch on all chunks of pipeline rank ``rank``, by part.

    Args:
        units: as ``unit_seconds`` gives them, if they are known already.
    """
    plan = plan.on(hardware)
    units = units or unit_seconds(shape, plan, hardware)
    kinds = plan.kinds_on(shape, rank)
    parts: dict[str, float] = defaultdict(float)
    for kind, n in kinds.items():
        for name, seconds in units.layers[kind].parts.items():
            parts[name] += n * seconds
    parts["embedding"] = units.embedding if rank == 0 else 0.0
    parts["logits"] = units.logits if rank == plan.rank_of(plan.stages - 1) else 0.0
    parts["pipeline"] = 0.0
    if plan.pp > 1:
        sent = _borders(plan, rank) * transfer_seconds(shape, plan, hardware)
        # With several chunks a rank computes another while a message is on its way.
        beside = sum(parts.values()) if "pipeline" in plan.overlap and plan.chunks > 1 else 0.0
        parts["pipeline"] = exposed(sent, beside, hardware, hardware.data_overlap)
    parts["gradient_accumulation"] = parts["data_parallel"] = 0.0
    if plan.microbatches > 1 and (plan.zero < 2 or plan.shard == 1):
        # From the second microbatch on, a gradient is added to the one that is there: read and written.
        # Megatron-LM's kernel for fp32 gradients adds as it writes: beside the product it costs nothing.
        fused = plan.gradients == "fp32" and plan.itemsize < 4
        accumulated = 0 if fused else 2 * plan.gradient_itemsize * sum(plan.parameters_of(shape, rank))
        again = (plan.microbatches - 1) / plan.microbatches
        parts["gradient_accumulation"] = again * memory_seconds(accumulated, hardware)
    if plan.zero >= 2:
        parts["data_parallel"] = sum(
            n * _sharded_layer(kind, plan, hardware, units.layers[kind]) for kind, n in kinds.items()
        )
        # The root unit is gathered before anything else and scattered after it: beside no computation.
        root = _sharding(plan, hardware, (plan.root_parameters(shape, rank), 0))
        parts["data_parallel"] += sum(root)
    return parts


def check_fits(shape: ModelShape, plan: Plan, hardware: Hardware) -> None:
    """Raise a ValueError if some pipeline rank needs more memory than the device has."""
    check_room(max(rank.occupied for rank in plan_memory(shape, plan, hardware)), hardware)


def check_room(needed: float, hardware: Hardware) -> None:
    """The same, where the bytes of the fullest rank are known."""
    if needed > hardware.memory:
        raise ValueError(
            f"this plan needs {needed / 1e9:.1f} GB on a device and {hardware.name} has "
            f"{hardware.memory / 1e9:.0f} GB: use more tp, pp or zero, recompute, or a smaller micro-batch"
        )


def _borders(plan: Plan, rank: int) -> int:
    """Transfers that a rank waits for with every microbatch: two a chunk; none where a V turns."""
    folded = plan.chunks > 1 and plan.rank_of(plan.pp) == plan.pp - 1
    turns = plan.chunks // 2 if folded and rank == plan.pp - 1 else 0
    return 2 * (plan.chunks - turns)


def transfer_seconds(shape: ModelShape, plan: Plan, hardware: Hardware) -> float:
    """An activation to the next stage: every tensor-parallel rank sends 1/t, and gathers the rest in its node."""
    size = plan.itemsize * plan.micro_batch * shape.sequence / plan.cp * shape.hidden
    near = plan.ranks <= hardware.node_size
    sent = (hardware.node if near else hardware.network).seconds(size / plan.tp)
    gathered = 0 if plan.sequence_parallel else collective_seconds("all-gather", size, plan.tp, 1, hardware)
    return sent + gathered


def _copies(plan: Plan, parameters: tuple[float, float]) -> list[tuple[float, int, int, int]]:
    """(parameters, ranks that hold the same, ranks that share one copy, stride) for dense and expert ones."""
    sizes = zip(parameters, plan.copies, (plan.tp, plan.tp * plan.ep), strict=True)
    return [(n, ranks, min(plan.shard, ranks), stride) for n, ranks, stride in sizes if n]


def _gradients(
    shape: ModelShape, plan: Plan, hardware: Hardware, rank: int, ahead: float, back: float
) -> float:
    """Once a step: gradients become one, beside the backward of the last microbatch; ZeRO shares the result, beside
    the forward of the next step's first. Beside, if the plan overlaps them.

    Args:
        ahead, back: seconds of that forward and of that backward.
    """
    reduced = gathered = 0.0
    for n, ranks, shard, stride in _copies(plan, plan.parameters_of(shape, rank)):
        size = plan.gradient_itemsize * n
        if plan.zero == 0:
            reduced += collective_seconds("all-reduce", size, ranks, stride, hardware)
            continue
        far = ranks // shard, stride * shard
        reduced += collective_seconds("all-reduce", size / shard, *far, hardware)
        if plan.zero == 1:
            reduced += collective_seconds("reduce-scatter", size, shard, stride, hardware)
        if plan.zero <= 2:
            gathered += collective_seconds("all-gather", plan.itemsize * n, shard, stride, hardware)
    if "gradients" in plan.overlap:
        reduced = exposed(reduced, back, hardware, hardware.data_overlap)
    if "parameters" in plan.overlap:
        gathered = exposed(gathered, ahead, hardware, hardware.data_overlap)
    return reduced + gathered


def _sharding(plan: Plan, hardware: Hardware, parameters: tuple[float, float]) -> tuple[float, float]:
    """(gather, scatter) of a unit of dense and expert parameters under ZeRO 2 or 3."""
    gather = scatter = 0.0
    for n, _, shard, stride in _copies(plan, parameters):
        group = shard, stride, hardware, True
        scatter += collective_seconds("reduce-scatter", plan.gradient_itemsize * n, *group)
        if plan.zero == 3:
            gather += collective_seconds("all-gather", plan.itemsize * n, *group)
    return gather, scatter


def _sharded_layer(shape: ModelShape, plan: Plan, hardware: Hardware, layer: LayerSeconds) -> float:
    """ZeRO 2 and 3, each layer and microbatch: gather for forward and backward, scatter the gradients."""
    experts = shape.routed_parameters(plan.ep)
    dense = shape.layer_parameters(plan.tp, plan.ep) - experts
    gather, scatter = _sharding(plan, hardware, (dense, experts))
    if not plan.prefetch:
        return 2 * gather + exposed(scatter, layer.backward_seconds, hardware, hardware.data_overlap)
    ahead = exposed(gather, layer.forward_seconds, hardware, hardware.data_overlap)
    return ahead + exposed(gather + scatter, layer.backward_seconds, hardware, hardware.data_overlap)


def _optimizer(shape: ModelShape, plan: Plan, hardware: Hardware, rank: int) -> dict[str, float]:
    """States read and written, gradients prepared and read, parameters written: nothing but memory traffic."""
    shares = _copies(plan, plan.parameters_of(shape, rank))
    own = sum(n / (shard if plan.zero else 1) for n, _, shard, _ in shares)
    kept = sum(n / (shard if plan.zero >= 2 else 1) for n, _, shard, _ in shares)
    update = own * (2 * plan.optimizer_bytes + plan.gradient_itemsize + plan.itemsize)
    passes = GRADIENT_PASSES * plan.gradient_itemsize * kept
    prepare = memory_seconds(passes + OWN_GRADIENT_BYTES * own, hardware)
    if plan.optimizer == "muon":
        prepare += muon_seconds(shape, plan, hardware, rank)
    if plan.offload == "none":
        return {"optimizer": prepare + memory_seconds(update, hardware), "offload": 0.0}
    moved = own * (plan.gradient_itemsize + plan.itemsize) / HOST_LINK  # gradients there, parameters back
    return {"optimizer": prepare + update / HOST_MEMORY, "offload": moved}
