"""How long a rank works on its share of one transformer layer: so many heads, columns or positions.

A layer has four blocks: attention, connection 1 (dropout, residual, norm), the MLP, connection 2. A rank does a block
for its share of the heads, of the MLP's columns, or of the positions of the sequence. Its forward and its backward each
have their own seconds, because the ranks wait for each other in both directions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

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

# (block, rank, share) -> (seconds of forward, seconds of backward)
ShareSeconds = Callable[[str, int, int], tuple[float, float]]


def device_seconds(shape: ModelShape, plan: Plan, devices: Sequence[Hardware]) -> ShareSeconds:
    """Each rank by the rooflines of its own device. Nothing is computed for a share of 0."""

    def seconds(block: str, rank: int, share: int) -> tuple[float, float]:
        if share == 0:
            return 0.0, 0.0
        device = devices[rank]
        own = plan.on(device)
        time = layer_seconds(of_share(shape, block, share), own, device)
        name = {"connection": "norms"}.get(block, block.split()[0])
        forward, backward = time.forward[name], time.backward[name]
        if block == "connection":  # the layer has two
            return forward / 2, backward / 2
        if block == "attention of positions":
            heads = own.micro_batch * shape.heads
            square = core_seconds(of_share(shape, block, share), own, device, heads, share)
            whole = core_seconds(shape, own, device, heads, share)
            return forward + whole[0] - square[0], backward + whole[1] - square[1]
        return forward, backward

    return seconds


def measured_seconds(
    points: Mapping[str, Mapping[int, tuple[float, float]]],
    slowness: Sequence[float] = (1.0,),
    handling: Mapping[str, tuple[float, float]] | None = None,
) -> ShareSeconds:
    """Straight lines between measured points, and on through the last two; a share of 0 has nothing to compute.

    Args:
        points: block -> share -> (seconds of forward, of backward), on a rank of slowness 1. The names of the blocks
            are those of ``BLOCKS``; a split needs those that its way has.
        slowness: of every rank: 3 means that all takes three times as long.
        handling: block -> (seconds in forward, in backward) in which a rank of slowness 1 prepares the block's
            messages and takes them apart (copies, sums, calls). They do not depend on the share, so a rank with a
            share of 0 has them, too. The ranks exchange messages together and wait for the slowest of them between
            two messages, whatever they computed before: so every rank spends what the slowest rank needs.
    """
    handling = dict(handling or {})
    for block, both in handling.items():
        one_of("block", block, BLOCKS)
        _check_both(f"handling of {block}", both)
    for factor in slowness:
        positive(each_of_slowness=factor)
    tables = {}
    for block, measured in points.items():
        one_of("block", block, BLOCKS)
        for size, both in measured.items():
            positive(**{f"a share of {block}": size})
            _check_both(f"seconds of {size} of {block}", both)
        if not measured:
            refuse(f"points of {block}", "at least one share with its seconds", dict(measured))
        shares = sorted(measured)
        directions = zip(*(measured[size] for size in shares), strict=True)
        # A larger share is never faster.
        tables[block] = shares, [list(accumulate(times, max)) for times in directions]

    def seconds(block: str, rank: int, share: int) -> tuple[float, float]:
        one_of("block", block, tables)
        shares, (forward, backward) = tables[block]
        ahead, back = handling.get(block, (0.0, 0.0))
        return (
            slowness[rank] * _between(shares, forward, share) + max(slowness) * ahead,
            slowness[rank] * _between(shares, backward, share) + max(slowness) * back,
        )

    return seconds


def _check_both(name: str, both: Any) -> None:
    if not (isinstance(both, tuple | list) and len(both) == 2):
        refuse(name, "a pair: seconds of forward, and of backward", both)
    for direction, seconds in zip(("forward", "backward"), both, strict=True):
        not_negative(**{f"{name}, {direction}": seconds})


def _between(shares: Sequence[int], times: Sequence[float], share: int) -> float:
    """On the straight line through the two measured points around the share."""
    if share == 0:
        return 0.0
    if len(shares) == 1:
        return times[0] * share / shares[0]
    right = min(max(bisect_left(shares, share), 1), len(shares) - 1)
    (a, b), (s, t) = shares[right - 1 : right + 1], times[right - 1 : right + 1]
    return max(0.0, s + (t - s) * (share - a) / (b - a))


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
