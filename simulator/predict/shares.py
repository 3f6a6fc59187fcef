"""How long a rank works on its share of one transformer layer: so many heads, columns or positions.

A layer has four blocks: attention, connection 1 (dropout, residual, norm), the MLP, connection 2. A rank does a block
for its share of the heads, of the MLP's columns, or of the positions of the sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from simulator.inputs.checks import at_least, not_negative, one_of, positive, refuse
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.layer_time import core_seconds, layer_seconds

# block -> what its share counts; "attention of positions" has own queries, and the keys and values of all positions.
BLOCKS = {
    "attention": "heads",
    "mlp": "columns",
    "connection": "positions",
    "attention of positions": "positions",
    "mlp of positions": "positions",
}

# (block, rank, share) -> seconds of forward and backward together
ShareSeconds = Callable[[str, int, int], float]


def device_seconds(shape: ModelShape, plan: Plan, devices: Sequence[Hardware]) -> ShareSeconds:
    """Each rank by the rooflines of its own device. Nothing is computed for a share of 0."""

    def seconds(block: str, rank: int, share: int) -> float:
        if share == 0:
            return 0.0
        device = devices[rank]
        own = plan.on(device)
        time = layer_seconds(of_share(shape, block, share), own, device)
        name = {"connection": "norms"}.get(block, block.split()[0])
        both = time.forward[name] + time.backward[name]
        if block == "attention of positions":
            heads = own.micro_batch * shape.heads
            square = core_seconds(of_share(shape, block, share), own, device, heads, share)
            both += sum(core_seconds(shape, own, device, heads, share)) - sum(square)
        return both / 2 if block == "connection" else both

    return seconds


def measured_seconds(
    points: Mapping[str, Mapping[int, float]],
    slowness: Sequence[float] = (1.0,),
    handling: Mapping[str, float] | None = None,
) -> ShareSeconds:
    """Straight lines between measured points, and on through the last two; a share of 0 has nothing to compute.

    Args:
        points: block -> share -> seconds of forward and backward together, on a rank of slowness 1. The names of
            the blocks are those of ``BLOCKS``; a split needs those that its way has.
        slowness: of every rank: 3 means that all takes three times as long.
        handling: block -> seconds in which a rank of slowness 1 prepares the block's messages and takes them apart
            (copies, sums, calls). They do not depend on the share, so a rank with a share of 0 has them, too.
    """
    handling = dict(handling or {})
    for block, time in handling.items():
        one_of("block", block, BLOCKS)
        not_negative(**{f"handling of {block}": time})
    for factor in slowness:
        positive(each_of_slowness=factor)
    tables = {}
    for block, measured in points.items():
        one_of("block", block, BLOCKS)
        for size, time in measured.items():
            positive(**{f"a share of {block}": size})
            not_negative(**{f"seconds of {size} of {block}": time})
        if not measured:
            refuse(f"points of {block}", "at least one share with its seconds", dict(measured))
        shares, most, times = sorted(measured), 0.0, []
        for size in shares:
            times.append(most := max(most, measured[size]))  # a larger share is never faster
        tables[block] = shares, times

    def seconds(block: str, rank: int, share: int) -> float:
        one_of("block", block, tables)
        return slowness[rank] * (computed(block, share) + handling.get(block, 0.0))

    def computed(block: str, share: int) -> float:
        if share == 0:
            return 0.0
        shares, times = tables[block]
        if len(shares) == 1:
            return times[0] * share / shares[0]
        right = min(max(bisect_left(shares, share), 1), len(shares) - 1)
        (a, b), (s, t) = shares[right - 1 : right + 1], times[right - 1 : right + 1]
        return max(0.0, s + (t - s) * (share - a) / (b - a))

    return seconds


def of_share(shape: ModelShape, block: str, share: int) -> ModelShape:
    """A shape whose layer is this share: fewer heads, columns or positions. Its share must be at least 1."""
    one_of("block", block, BLOCKS)
    if BLOCKS[block] == "heads":
        return with_heads(shape, share)
    if BLOCKS[block] == "columns":
        return replace(shape, ffn=share)
    return replace(shape, sequence=share)


def with_heads(shape: ModelShape, heads: int) -> ModelShape:
    """The shape with so many query heads, each as wide as before, and the heads of keys and values that they read."""
    at_least(1, heads=heads)
    group = shape.heads // shape.kv_heads
    if heads % group:
        refuse("heads", f"a multiple of {group}, the query heads that read one key", heads)
    return replace(shape, heads=heads, kv_heads=heads // group, head_dim=shape.head_size)
