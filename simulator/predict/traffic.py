"""What one rank sends in one training step under each technique: closed forms, as ``Traffic``.

With ``rank`` given, every figure is the exact number of bytes that this rank sends with the ring algorithms of
``course_lib.runtime.collectives``, also where sizes do not divide evenly. Without it, it is the mean over the group.
Sizes are lists because each tensor, bucket or unit is dealt out by itself: ``[elements]`` is one flat buffer.

Sources: DDP buckets arXiv:2006.15704; ZeRO arXiv:1910.02054 section 7; FSDP and hybrid sharding
arXiv:2304.11277; tensor parallelism arXiv:1909.08053; with sequence parallelism arXiv:2205.05198 section 4;
pipelines arXiv:2104.04473; ring attention arXiv:2310.01889; experts arXiv:2006.16668.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from simulator.inputs.checks import amounts, at_least, index, one_of, refuse
from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.placement import rank_of
from simulator.ledgers.traffic import Traffic, TrafficRow
from simulator.pipeline.actions import Schedule
from simulator.predict.collective_traffic import (
    ring_all_gather_sent,
    ring_all_reduce_sent,
    ring_reduce_scatter_sent,
    sent_bytes,
)

_EXACT: dict[str, Callable[..., int]] = {
    "all-reduce": ring_all_reduce_sent,
    "all-gather": ring_all_gather_sent,
    "reduce-scatter": ring_reduce_scatter_sent,
}


def calls(
    collective: str,
    sizes: Sequence[float],
    itemsize: int,
    ranks: int,
    rank: int | None = None,
    times: int = 1,
) -> Traffic:
    """``times`` calls of one ring collective for each of ``sizes`` (elements of the whole tensor)."""
    one_of("collective", collective, _EXACT)
    amounts(sizes=sizes)
    at_least(1, itemsize=itemsize, ranks=ranks)
    at_least(0, times=times)
    if rank is not None:
        index(ranks, rank=rank)
    if ranks == 1 or not sizes or not times:
        return Traffic()
    payload = itemsize * sum(sizes) * times
    if rank is None:
        sent = sent_bytes(collective, payload, ranks)
    else:
        sent = times * sum(_EXACT[collective](size, itemsize, ranks, rank) for size in sizes)
    return Traffic([TrafficRow(collective, ranks, len(sizes) * times, payload, sent)])


def ddp_traffic(sizes: Sequence[int], ranks: int, itemsize: int = 4, rank: int | None = None) -> Traffic:
    """One step of DDP: every bucket (or parameter) of gradients is all-reduced once: 2 (p-1)/p of the model."""
    return calls("all-reduce", sizes, itemsize, ranks, rank)


def zero_traffic(
    stage: int,
    sizes: Sequence[int],
    ranks: int,
    itemsize: int = 4,
    rank: int | None = None,
    *,
    gradient_itemsize: int | None = None,
    accumulation: int = 1,
) -> Traffic:
    """One step of ZeRO: stages 1 and 2 send as much as DDP (2 Psi), stage 3 sends 1.5 times as much (3 Psi).

    Args:
        stage: 0 to 3.
        sizes: elements of each flat buffer that is dealt out by itself.
        gradient_itemsize: bytes of a gradient on the wire where it differs from a parameter's.
        accumulation: microbatches in the step. Stages 0 and 1 reduce once, at the end; stage 2 and 3 keep
            only their shard of the gradients, so they reduce after every microbatch, and stage 3 gathers twice
            in each.
    """
    if type(stage) is not int or stage not in (0, 1, 2, 3):
        refuse("stage", "0, 1, 2 or 3", stage)
    at_least(1, accumulation=accumulation, itemsize=itemsize)
    gradient_itemsize = itemsize if gradient_itemsize is None else gradient_itemsize
    if stage == 0:
        return ddp_traffic(sizes, ranks, gradient_itemsize, rank)
    reductions = accumulation if stage >= 2 else 1
    gathers = 2 * accumulation if stage == 3 else 1
    reduced = calls("reduce-scatter", sizes, gradient_itemsize, ranks, rank, reductions)
    return reduced + calls("all-gather", sizes, itemsize, ranks, rank, gathers)


def fsdp_traffic(
    units: Sequence[int],
    ranks: int,
    itemsize: int = 4,
    rank: int | None = None,
    *,
    shard: int | None = None,
    gradient_itemsize: int | None = None,
    reshard: bool = True,
    keep_last: bool = False,
    accumulation: int = 1,
) -> Traffic:
    """One step of FSDP: gather each unit for forward, again for backward, reduce-scatter its gradient.

    Args:
        units: elements of each flat unit.
        ranks: all data-parallel ranks.
        shard: ranks that share one copy (hybrid sharding): collectives inside this group, then an all-reduce of
            the shard among the ranks / shard copies. None: ``ranks``.
        reshard: False keeps units gathered from forward to backward: one gather instead of two.
        keep_last: only the last unit stays gathered, because backward needs it at once.
    """
    shard = ranks if shard is None else shard
    at_least(1, ranks=ranks, shard=shard, accumulation=accumulation)
    amounts(units=units)
    if rank is not None:
        index(ranks, rank=rank)
    if ranks % shard:
        raise ValueError(f"shard must divide the {ranks} ranks, not {shard}")
    gradient_itemsize = itemsize if gradient_itemsize is None else gradient_itemsize
    place, copy = (None, None) if rank is None else (rank % shard, rank // shard)
    again = [] if not reshard else list(units[:-1] if keep_last else units)
    gathered = calls("all-gather", [*units, *again], itemsize, shard, place, accumulation)
    scattered = calls("reduce-scatter", units, gradient_itemsize, shard, place, accumulation)
    pieces = [unit / shard if place is None else chunk_sizes(unit, shard)[place] for unit in units]
    replicas = calls("all-reduce", pieces, gradient_itemsize, ranks // shard, copy, accumulation)
    return gathered + scattered + replicas


def tensor_parallel_traffic(
    tokens: int,
    hidden: int,
    ranks: int,
    layers: int = 1,
    itemsize: int = 2,
    rank: int | None = None,
    *,
    blocks: int = 2,
    sequence_parallel: bool = False,
    recompute: bool = False,
    regather: bool = True,
) -> Traffic:
    """Forward and backward of transformer layers on one microbatch of ``tokens`` x ``hidden``.

    Without sequence parallelism: f and g, two all-reduces forward and two backward. With it each all-reduce
    splits into its halves: g gathers before attention and MLP, its conjugate reduce-scatters behind them.
    ``recompute`` repeats the forward; ``regather`` gathers the saved slice again for the weight gradient, the
    price of keeping only 1/t of it (two more all-gathers a layer). ``blocks``: attention and MLP, or 3 with cross
    attention.
    """
    at_least(1, tokens=tokens, hidden=hidden, blocks=blocks)
    at_least(0, layers=layers)
    whole = [tokens * hidden] * layers
    passes = 3 if recompute else 2
    if not sequence_parallel:
        return calls("all-reduce", whole, itemsize, ranks, rank, blocks * passes)
    gathers = blocks * passes + (blocks if regather else 0)
    gathered = calls("all-gather", whole, itemsize, ranks, rank, gathers)
    return gathered + calls("reduce-scatter", whole, itemsize, ranks, rank, blocks * passes)


def pipeline_traffic(
    elements: int,
    microbatches: int,
    ranks: int,
    rank: int,
    chunks: int = 1,
    itemsize: int = 2,
    *,
    placement: str = "loop",
) -> Traffic:
    """What pipeline rank ``rank`` sends: an activation forward for each chunk but the last of the model, and
    its gradient backward for each chunk but the first; nothing where a V turns and both stages are its own.

    Args:
        elements: of one microbatch at a stage's border.
    """
    at_least(0, elements=elements, microbatches=microbatches)
    at_least(1, ranks=ranks, chunks=chunks, itemsize=itemsize)
    index(ranks, rank=rank)
    holders = [rank_of(stage, ranks, placement) for stage in range(ranks * chunks)]
    crossings = [(a, b) for a, b in pairwise(holders) if a != b and rank in (a, b)]
    messages = microbatches * len(crossings)  # at each border one of the two: F by the one, B by the other
    size = messages * elements * itemsize
    return Traffic([TrafficRow("send", 2, messages, size, size)] if messages else [])


def schedule_traffic(schedule: Schedule, elements: int, rank: int, itemsize: int = 2) -> Traffic:
    """What pipeline rank ``rank`` sends under any schedule, counted from its actions: nothing to a stage that it holds
    itself.

    Args:
        elements: of one microbatch at a stage's border.
    """
    at_least(0, elements=elements)
    at_least(1, itemsize=itemsize)
    index(schedule.ranks, rank=rank)
    messages = 0
    for kind, stage, _ in schedule.actions[rank]:
        neighbour = {"F": stage + 1, "B": stage - 1, "BW": stage - 1, "W": stage}[kind]
        messages += 0 <= neighbour < schedule.stages and schedule.rank_of(neighbour) != rank
    size = messages * elements * itemsize
    return Traffic([TrafficRow("send", 2, messages, size, size)] if messages else [])


def expert_parallel_traffic(
    tokens: int,
    hidden: int,
    experts_per_token: int,
    ranks: int,
    layers: int = 1,
    itemsize: int = 2,
    *,
    there: int | None = None,
    recompute: bool = False,
) -> Traffic:
    """Balanced routing of one microbatch: tokens go to their experts and back, forward and backward.

    Args:
        itemsize: bytes of a number.
        there: bytes of a copy on its way to an expert; None: as on the way back.
        recompute: the forward runs twice.
    """
    at_least(0, layers=layers)
    at_least(
        1, tokens=tokens, hidden=hidden, experts_per_token=experts_per_token, ranks=ranks, itemsize=itemsize
    )
    back, passes = hidden * itemsize, 3 if recompute else 2
    there = back if there is None else there
    at_least(1, there=there)
    payload = passes * layers * tokens * experts_per_token * (there + back)
    row = TrafficRow(
        "all-to-all", ranks, 2 * passes * layers, payload, sent_bytes("all-to-all", payload, ranks)
    )
    return Traffic([row] if ranks > 1 else [])


def padded(sizes: Sequence[int], ranks: int) -> list[int]:
    """Sizes rounded up to whole shards, as implementations do that give every rank equally much."""
    at_least(1, ranks=ranks)
    for size in sizes:
        at_least(0, sizes=size)
    return [-(-size // ranks) * ranks for size in sizes]
