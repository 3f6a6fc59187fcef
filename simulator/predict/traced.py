"""Memory and time of a model that was traced: states of DDP, ZeRO and FSDP, activations, recomputation, pipelines.

The trace is one microbatch on one device; what it measured is replayed over the plan. A microbatch is what was traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.traced import Piece, TracedModel, Work
from simulator.ledgers.memory import MemoryBreakdown
from simulator.pipeline.engine import simulate
from simulator.predict.collective_time import collective_seconds, exposed
from simulator.predict.kernel_time import memory_seconds
from simulator.predict.memory import DDP_BUCKET, model_states, reserved_bytes
from simulator.predict.memory_over_time import peak_saved
from simulator.predict.stages import plan_schedule
from simulator.predict.step import StepCost


def traced_memory(model: TracedModel, plan: Plan, hardware: Hardware | None = None) -> list[MemoryBreakdown]:
    """The peak of every pipeline rank, as ``simulator.predict.memory.plan_memory`` gives it for a shape."""
    stages = _stages(model, plan)
    kept = [sum(_kept(piece, plan) for piece in stage) for stage in stages]
    in_flight = peak_saved(plan_schedule(plan), kept, kept)
    ranks = []
    for rank in range(plan.pp):
        own = [stages[stage] for stage in plan.stages_of(rank)]
        others = in_flight[rank] - max(kept[stage] for stage in plan.stages_of(rank))
        peak = max((_peak(stage, model.largest, plan) for stage in own), key=lambda held: held.total)
        pieces = [piece for stage in own for piece in stage]
        states = model_states(sum(piece.parameters for piece in pieces), plan)
        frozen = replace(model_states(model.frozen, plan), gradients=0, optimizer_states=0)
        if plan.microbatches == 1:  # gradients come one after the other
            states = replace(states, gradients=0)
        held = states + frozen + peak + MemoryBreakdown(activations=others, buffers=_buffers(pieces, plan))
        held += MemoryBreakdown(buffers=model.fixed)
        ranks.append(replace(held, reserved=reserved_bytes(held.total, hardware) if hardware else 0))
    return ranks


def _peak(pieces: Sequence[Piece], largest: int, plan: Plan) -> MemoryBreakdown:
    """Activations, and gradients that are new, at the fullest moment of one microbatch."""
    each = plan.gradient_itemsize / (plan.shard if plan.zero >= 2 else 1)
    below = list(accumulate((_kept(piece, plan) for piece in pieces), initial=0.0))
    behind = list(accumulate((each * piece.parameters for piece in reversed(pieces)), initial=0.0))[::-1]
    if plan.microbatches > 1:
        behind = [0.0] * len(behind)  # they are among the states
    # The optimizer's: PyTorch's Adam holds two more tensors, one parameter after the other (fused: none)
    update = 2 * 4 * largest / (plan.shard if plan.zero else 1) if plan.optimizer == "adam" else 0.0
    moments = [MemoryBreakdown(gradients=behind[0], buffers=update)]
    for i, piece in enumerate(pieces):
        dropped = piece.kept - _kept(piece, plan)
        moments.append(MemoryBreakdown(activations=below[i] + piece.forward_peak - dropped))
        new = piece.backward_peak if plan.microbatches == 1 or plan.zero >= 2 else piece.without_gradients
        back = max(piece.kept + new, piece.forward_peak if dropped else 0.0)
        moments.append(MemoryBreakdown(gradients=behind[i + 1], activations=below[i] + back))
    return max(moments, key=lambda held: held.total)


def _kept(piece: Piece, plan: Plan) -> float:
    return piece.output if plan.recompute == "full" and piece.name else piece.kept


def _buffers(pieces: Sequence[Piece], plan: Plan) -> float:
    """DDP's bucket; under ZeRO 3 what is gathered: all outside the units, and the unit in use with those ahead."""
    whole = sum(piece.parameters for piece in pieces)
    if plan.dp == 1:
        return 0.0
    if plan.zero < 2:
        return min(DDP_BUCKET, plan.gradient_itemsize * whole)
    if plan.zero == 2:
        return 0.0
    units = [piece.parameters for piece in pieces if piece.name]
    ahead = max(units, default=0) * min(1 + plan.prefetch, len(units))
    return plan.itemsize * (whole - sum(units) + ahead)


def traced_step(model: TracedModel, plan: Plan, hardware: Hardware) -> StepCost:
    """Seconds of a step, by part. Each kernel takes as long as its arithmetic or its memory, and a launch."""
    plan = plan.on(hardware)
    stages = _stages(model, plan)
    forward = [sum(_seconds(p.forward, plan, hardware) for p in stage) for stage in stages]
    backward = [sum(_seconds(p.backward, plan, hardware) for p in stage) for stage in stages]
    again = [
        sum(_seconds(p.forward, plan, hardware) for p in stage if _kept(p, plan) != p.kept)
        for stage in stages
    ]
    ranks = range(plan.pp)

    def on(rank: int, of: Sequence[float]) -> float:
        return plan.microbatches * sum(of[stage] for stage in plan.stages_of(rank))

    slowest = max(ranks, key=lambda rank: on(rank, forward) + on(rank, backward) + on(rank, again))
    half = [b / 2 for b in backward]
    back = [h + a for h, a in zip(half, again, strict=True)]
    makespan = simulate(plan_schedule(plan), forward, back, half).makespan
    parts = {
        "forward": on(slowest, forward),
        "backward": on(slowest, backward),
        "recomputation": on(slowest, again),
    }
    parts["bubble"] = max(0.0, makespan - sum(parts.values()))
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
    repeated = sum(p.flops[0] for stage in stages for p in stage if _kept(p, plan) != p.kept)
    return StepCost(
        parts,
        {name: parts[name] for name in ("data_parallel", "optimizer")},
        batch * sum(model.flops),
        batch * (sum(model.flops) + repeated),
        hardware.peak_flops * plan.ranks,
        plan.ranks,
    )


def _seconds(work: Work, plan: Plan, hardware: Hardware) -> float:
    rate = hardware.peak_flops * (2 / plan.itemsize) * hardware.matmul_efficiency * hardware.sustained
    return sum(
        n * (hardware.launch + max(flops / rate, memory_seconds(moved, hardware)))
        for (flops, moved), n in work.items()
    )


def _data_parallel(parameters: float, plan: Plan, hardware: Hardware, ahead: float, back: float) -> float:
    """What is sent and not hidden beside the seconds of forward (``ahead``) and backward of a microbatch."""
    shard, copies = plan.shard if plan.zero else 1, plan.dp // (plan.shard if plan.zero else 1)
    gradients, whole = plan.gradient_itemsize * parameters, plan.itemsize * parameters
    each = plan.microbatches if plan.zero >= 2 else 1

    def beside(seconds: float, computing: float, name: str) -> float:
        hidden = name in plan.overlap if name else plan.prefetch
        return exposed(seconds, computing, hardware, hardware.data_overlap) if hidden else seconds

    reduced = collective_seconds("all-reduce", gradients / shard, copies, shard, hardware)
    scattered = collective_seconds("reduce-scatter", gradients, shard, 1, hardware, plan.zero >= 2)
    gathered = collective_seconds("all-gather", whole, shard, 1, hardware, plan.zero == 3)
    if plan.zero < 3:
        return each * beside(scattered, back, "gradients") + beside(reduced, back, "gradients") + gathered
    return each * (beside(gathered, ahead, "") + beside(gathered + scattered, back, "")) + reduced


def _stages(model: TracedModel, plan: Plan) -> list[list[Piece]]:
    """The pieces of each pipeline stage."""
    for name, values, why in (
        ("tp", (1,), "a trace does not say which matrices are cut by columns"),
        ("cp", (1,), "a trace does not say which dimension is the sequence"),
        ("ep", (1,), "a trace does not say which modules are experts"),
        ("micro_batch", (1,), "a microbatch is what was traced"),
        ("recompute", ("none", "full"), "a trace does not say what is attention"),
        ("offload", ("none",), "a trace is priced on its device"),
    ):
        if getattr(plan, name) not in values:
            raise ValueError(
                f"{name} must be {' or '.join(map(str, values))}, not {getattr(plan, name)}: {why}"
            )
    if plan.itemsize != model.itemsize:
        raise ValueError(
            f"precision must have {model.itemsize} bytes a parameter, as the traced module, not {plan.precision}"
        )
    if plan.stages == 1:
        return [list(model.pieces)]
    units = [i for i, piece in enumerate(model.pieces) if piece.name]
    if len({(model.pieces[i].parameters, model.pieces[i].flops) for i in units}) != 1:
        raise ValueError("pp must be 1: the module's units are not alike")
    if len(units) < plan.stages:
        raise ValueError(f"{plan.stages} pipeline stages need as many units; the module has {len(units)}")
    counts = plan.stage_layers or chunk_sizes(len(units), plan.stages)
    if len(counts) != plan.stages or sum(counts) != len(units):
        raise ValueError(
            f"stage layers must be {plan.stages} numbers that add up to {len(units)}, not {counts}"
        )
    firsts = [units[n] for n in accumulate(counts[:-1])]
    borders = [0, *firsts, len(model.pieces)]
    return [list(model.pieces[a:b]) for a, b in pairwise(borders)]
