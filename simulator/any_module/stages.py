"""Which pieces of a traced model a pipeline stage has, and what each keeps; what a trace cannot tell is refused."""

from __future__ import annotations

from itertools import accumulate, pairwise

from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.plan import Plan
from simulator.inputs.traced import Piece, TracedModel


def stage_pieces(model: TracedModel, plan: Plan) -> list[list[Piece]]:
    """The pieces of each pipeline stage."""
    for name, values, why in (
        ("tp", (model.tp,), "over so many ranks the module was cut"),
        ("sequence_parallel", (False,), "the module is cut as it says itself"),
        ("cp", (1,), "a trace does not say which dimension is the sequence"),
        ("ep", (1,), "a trace does not say which modules are experts"),
        ("micro_batch", (model.samples,), "so many samples were traced"),
        ("recompute", ("none", "full"), "a trace does not say what is attention"),
        ("optimizer", ("adam", "momentum", "sgd"), "a trace does not say which weights are layers' matrices"),
        ("precision", ("mixed", "bf16", "fp32"), "a trace does not say which products run in 8 bits"),
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
    if not model.alike:
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


def kept_bytes(piece: Piece, plan: Plan) -> float:
    """What a piece keeps of a microbatch until its backward: of a unit that is recomputed, what it passes on.

    Then no piece frees what was passed to a unit, because that is computed again from it.
    """
    if plan.recompute != "full":
        return piece.kept
    return piece.output if piece.name else max(0.0, piece.kept)
