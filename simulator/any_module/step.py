"""How long a step of a traced model takes, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.any_module.stages import kept_bytes, stage_pieces
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.traced import Piece, Sent, TracedModel, Work
from simulator.pipeline.engine import simulate
from simulator.predict.collective_time import collective_seconds, exposed
from simulator.predict.kernel_time import memory_seconds
from simulator.predict.stages import plan_schedule
from simulator.predict.step import PARTS, StepCost


def traced_step(model: TracedModel, plan: Plan, hardware: Hardware) -> StepCost:
    """Seconds of a step, by part. Each kernel takes as long as its arithmetic or its memory, and a launch."""
    plan = plan.on(hardware)
    stages = stage_pieces(model, plan)

    def recomputed(piece: Piece) -> bool:
        return bool(piece.name) and kept_bytes(piece, plan) != piece.kept

    def each(seconds: Callable[[Piece], float]) -> list[float]:
        """Of one microbatch, by stage."""
        return [sum(map(seconds, stage)) for stage in stages]

    def on(rank: int, of: Sequence[float]) -> float:
        return plan.microbatches * sum(of[stage] for stage in plan.stages_of(rank))

    forward = each(lambda p: _seconds(p.forward, plan, hardware))
    backward = each(lambda p: _seconds(p.backward, plan, hardware))
    sent = each(lambda p: _sent(p.sent, plan, hardware))
    sent_back = each(lambda p: _sent(p.sent_back, plan, hardware))
    again = each(
        lambda p: _seconds(p.forward, plan, hardware) + _sent(p.sent, plan, hardware) if recomputed(p) else 0
    )
    messages = [a + b for a, b in zip(sent, sent_back, strict=True)]
    each_part = {
        "forward": forward,
        "backward": backward,
        "recomputation": again,
        "tensor_parallel": messages,
    }
    ranks = range(plan.pp)
    slowest = max(ranks, key=lambda rank: sum(on(rank, seconds) for seconds in each_part.values()))
    parts = {name: on(slowest, seconds) for name, seconds in each_part.items()}
    ahead = [f + s for f, s in zip(forward, sent, strict=True)]
    half = [b / 2 for b in backward]
    back = [h + a + s for h, a, s in zip(half, again, sent_back, strict=True)]
    makespan = simulate(plan_schedule(plan), ahead, back, half).makespan
    parts["bubble"] = max(0.0, makespan - sum(parts.values())) if plan.pp > 1 else 0.0
    parts["pipeline"] = 0.0
    if plan.pp > 1:
        link = hardware.node if plan.ranks <= hardware.node_size else hardware.network
        borders = 2 * plan.chunks * plan.microbatches
        parts["pipeline"] = borders * link.seconds(max(stage[-1].output for stage in stages[:-1]))
    parameters = max(sum(p.parameters for s in plan.stages_of(rank) for p in stages[s]) for rank in ranks)
    beside = parts["forward"] / plan.microbatches, parts["backward"] / plan.microbatches
    parts["data_parallel"] = _data_parallel(parameters, plan, hardware, *beside)
    own = parameters / (plan.shard if plan.zero else 1)
    update = own * (2 * plan.optimizer_bytes + plan.gradient_itemsize + plan.itemsize)
    parts["optimizer"] = memory_seconds(update, hardware)
    batch = plan.dp * plan.microbatches
    repeated = sum(p.flops[0] for stage in stages for p in stage if recomputed(p))
    return StepCost(
        dict.fromkeys(PARTS, 0.0) | parts,
        {name: parts[name] for name in ("data_parallel", "optimizer")},
        batch * sum(model.flops) * plan.tp,
        batch * (sum(model.flops) + repeated) * plan.tp,
        hardware.peak_flops * plan.ranks,
        plan.ranks,
    )


def _seconds(work: Work, plan: Plan, hardware: Hardware) -> float:
    rate = hardware.peak_flops * (2 / plan.itemsize) * hardware.matmul_efficiency * hardware.sustained
    return sum(
        n * (hardware.launch + max(flops / rate, memory_seconds(moved, hardware)))
        for (flops, moved), n in work.items()
    )


def _sent(messages: Sent, plan: Plan, hardware: Hardware) -> float:
    """What tensor-parallel ranks send one after the other: the next operator waits for it."""
    seconds = sum(n * collective_seconds(*each, plan.tp, 1, hardware) for each, n in messages.items())
    return seconds * (1 - hardware.overlap) if "tensor" in plan.overlap else seconds


def _data_parallel(parameters: float, plan: Plan, hardware: Hardware, ahead: float, back: float) -> float:
    """What is sent and not hidden beside the seconds of forward (``ahead``) and backward of a microbatch."""
    shard, copies = plan.shard if plan.zero else 1, plan.dp // (plan.shard if plan.zero else 1)
    gradients, whole = plan.gradient_itemsize * parameters, plan.itemsize * parameters
    each = plan.microbatches if plan.zero >= 2 else 1

    def beside(seconds: float, computing: float, name: str) -> float:
        hidden = name in plan.overlap if name else plan.prefetch
        return exposed(seconds, computing, hardware, hardware.data_overlap) if hidden else seconds

    reduced = collective_seconds("all-reduce", gradients / shard, copies, plan.tp * shard, hardware)
    scattered = collective_seconds("reduce-scatter", gradients, shard, plan.tp, hardware, plan.zero >= 2)
    gathered = collective_seconds("all-gather", whole, shard, plan.tp, hardware, plan.zero == 3)
    if plan.zero < 3:
        return each * beside(scattered, back, "gradients") + beside(reduced, back, "gradients") + gathered
    return each * (beside(gathered, ahead, "") + beside(gathered + scattered, back, "")) + reduced
