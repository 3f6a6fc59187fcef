"""Memory of a model that was traced: states of DDP, ZeRO and FSDP, activations, recomputation, pipelines.

The trace is one microbatch on one device; what was alive in it is replayed over the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from simulator.any_module.stages import kept_bytes, stage_pieces
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.traced import Piece, TracedModel
from simulator.ledgers.memory import MemoryBreakdown
from simulator.predict.memory import DDP_BUCKET, model_states, reserved_bytes
from simulator.predict.memory_over_time import peak_saved
from simulator.predict.stages import plan_schedule


def traced_memory(model: TracedModel, plan: Plan, hardware: Hardware | None = None) -> list[MemoryBreakdown]:
    """The peak of every pipeline rank, as ``simulator.predict.memory.plan_memory`` gives it for a shape."""
    stages = stage_pieces(model, plan)
    kept = [sum(kept_bytes(piece, plan) for piece in stage) for stage in stages]
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
    below = list(accumulate((kept_bytes(piece, plan) for piece in pieces), initial=0.0))
    behind = list(accumulate((each * piece.parameters for piece in reversed(pieces)), initial=0.0))[::-1]
    if plan.microbatches > 1:
        behind = [0.0] * len(behind)  # they are among the states
    # The optimizer's: PyTorch's Adam holds two more tensors, one parameter after the other (fused: none)
    update = 2 * 4 * largest / (plan.shard if plan.zero else 1) if plan.optimizer == "adam" else 0.0
    moments = [MemoryBreakdown(gradients=behind[0], buffers=update)]
    for i, piece in enumerate(pieces):
        dropped = max(0.0, piece.kept - kept_bytes(piece, plan))
        moments.append(MemoryBreakdown(activations=below[i] + piece.forward_peak - dropped))
        new = piece.backward_peak if plan.microbatches == 1 or plan.zero >= 2 else piece.without_gradients
        back = max(piece.kept + new, piece.forward_peak if dropped else 0.0)
        moments.append(MemoryBreakdown(gradients=behind[i + 1], activations=below[i] + back))
    return max(moments, key=lambda held: held.total)


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
