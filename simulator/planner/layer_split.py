"""Which rank does how much of a transformer layer, on devices of unequal speed and memory: planned, or priced as given.

The blocks of a layer and their placements are those of ``simulator.inputs.galaxy``. Ranks meet at every message between
two blocks, in forward and in backward, and the slowest rank decides when. So a layer takes, for each of the three lists
(heads, columns, sequence), the time of the rank that is the slowest in forward and of the one that is the slowest in
backward; and the time of the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from operator import add, mul

from simulator.inputs.checks import one_of, refuse
from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.galaxy import deal_shares, placement_of_blocks
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.planner.deal import deal, fits
from simulator.planner.layer_memory import check_fits, share_bytes
from simulator.planner.part import Part, Shares
from simulator.predict.placed_messages import longest_part_seconds, message_seconds
from simulator.predict.shares import ShareSeconds, device_seconds

FP32 = Plan(precision="fp32")
# (kind of block, placement) -> its entry in ``simulator.predict.shares.BLOCKS``
TIMED_AS = {
    ("attention", "heads"): "attention",
    ("attention", "sequence"): "attention of positions",
    ("attention", "whole"): "attention",
    ("mlp", "columns"): "mlp",
    ("mlp", "sequence"): "mlp of positions",
    ("mlp", "whole"): "mlp",
    ("connection", "sequence"): "connection",
    ("connection", "whole"): "connection",
}


@dataclass(frozen=True)
class LayerSplit:
    """One layer on ranks that may be unequal.

    Args:
        placement: block -> heads, columns, sequence or whole.
        shares: list -> what each rank has of it; only the lists that the placement splits.
        forward, backward: block -> seconds of each rank.
        parts: list -> for the blocks that are split by it, seconds of the slowest rank in forward and of the slowest
            in backward, added up.
        communication: message -> seconds, in both directions together.
        memory: bytes that each rank holds, of all layers and of what is no layer.
    """

    placement: dict[str, str]
    shares: dict[str, list[int]]
    forward: dict[str, list[float]]
    backward: dict[str, list[float]]
    parts: dict[str, float]
    communication: dict[str, float]
    memory: list[float]

    @property
    def heads(self) -> list[int] | None:
        return self.shares.get("heads")

    @property
    def columns(self) -> list[int] | None:
        return self.shares.get("columns")

    @property
    def sequence(self) -> list[int] | None:
        return self.shares.get("sequence")

    @property
    def compute(self) -> dict[str, list[float]]:
        """Block -> seconds of each rank, forward and backward together."""
        return {block: list(map(add, ahead, self.backward[block])) for block, ahead in self.forward.items()}

    @property
    def seconds(self) -> float:
        """Of one layer: the slowest rank in each part and each direction, and all messages."""
        return sum(self.parts.values()) + sum(self.communication.values())

    @property
    def busy(self) -> list[float]:
        """Seconds that each rank computes."""
        return [sum(of_rank) for of_rank in zip(*self.compute.values(), strict=True)]

    @property
    def waiting(self) -> list[float]:
        """Seconds in which each rank has nothing to compute while others still do."""
        return [max(0.0, sum(self.parts.values()) - busy) for busy in self.busy]


def plan_layer(
    shape: ModelShape,
    devices: Sequence[Hardware],
    placement: str | Mapping[str, str] = "galaxy",
    *,
    plan: Plan = FP32,
    seconds: ShareSeconds | None = None,
    layer: str = "post-norm",
) -> LayerSplit:
    """The lists with which a layer takes the least time while every rank's part of the model fits its device.

    Args:
        devices: one for each rank.
        placement: a name of ``simulator.inputs.galaxy.WAYS``, or a placement for each block.
        plan: micro-batch, precision, optimizer and attention kernel; its axes are not looked at.
        seconds: measured times (``simulator.predict.shares.measured_seconds``) in place of the devices' rooflines.
        layer: the kind of layer, ``"post-norm"`` (BERT) or ``"pre-norm"`` (LLaMA).

    Raises:
        ValueError: nothing fits; the sentence names the device that lacks memory, and how much.
    """
    question = _Layer(shape, devices, placement, plan, seconds, layer)
    parts = list(question.parts.values())
    dealt = deal(parts, question.room) if min(question.room) >= 0 else None
    if dealt is None:
        without = deal([replace(part, bytes=0.0) for part in parts], [inf] * len(devices))
        assert without is not None
        shared = sum(part.bytes * part.total for part in parts)
        check_fits(question.memory(without), question.fixed, devices, shared)
        raise AssertionError("the shares fit one by one, and were not found")
    even = question.even()
    candidates = [dealt, even] if fits(parts, even, question.room) else [dealt]
    return min((question.priced(lists) for lists in candidates), key=lambda split: split.seconds)


def even_layer(
    shape: ModelShape,
    devices: Sequence[Hardware],
    placement: str | Mapping[str, str] = "galaxy",
    *,
    plan: Plan = FP32,
    seconds: ShareSeconds | None = None,
    layer: str = "post-norm",
) -> LayerSplit:
    """The same layer with lists as even as can be, whether they fit or not. Arguments as ``plan_layer``'s."""
    question = _Layer(shape, devices, placement, plan, seconds, layer)
    return question.priced(question.even())


def price_layer(
    shape: ModelShape,
    devices: Sequence[Hardware],
    placement: str | Mapping[str, str] = "galaxy",
    *,
    heads: Sequence[int] | None = None,
    columns: Sequence[int] | None = None,
    sequence: Sequence[int] | None = None,
    plan: Plan = FP32,
    seconds: ShareSeconds | None = None,
    layer: str = "post-norm",
) -> LayerSplit:
    """The same layer with lists of one's own; a list that is not given is even. Other arguments as ``plan_layer``'s.

    Raises:
        ValueError: a list that is not one whole number a rank, or does not add up; a list that this placement does
            not split; a rank that lacks memory, with its name and how much.
    """
    question = _Layer(shape, devices, placement, plan, seconds, layer)
    lists = dict(zip(question.parts, question.even(), strict=True))
    for name, shares in {"heads": heads, "columns": columns, "sequence": sequence}.items():
        if shares is not None:
            lists[name] = question.checked(name, shares)
    dealt = list(lists.values())
    check_fits(question.memory(dealt), question.fixed, devices)
    return question.priced(dealt)


class _Layer:
    """A question, and what follows from it before any list is known.

    Attributes:
        parts: list -> what is to be dealt out, in units: heads that share a key count as one.
        fixed: bytes that a rank holds whatever its shares are.
    """

    def __init__(
        self,
        shape: ModelShape,
        devices: Sequence[Hardware],
        placement: str | Mapping[str, str],
        plan: Plan,
        seconds: ShareSeconds | None,
        layer: str,
    ) -> None:
        if shape.experts > 1:
            refuse("experts", "1: a layer with experts is not split this way", shape.experts)
        if plan.recompute != "none":
            refuse("recompute of the plan", "'none'", plan.recompute)
        one_of("layer", layer, ("post-norm", "pre-norm"))
        if isinstance(devices, Hardware) or not len(devices):
            refuse("devices", "a list of Hardware, one a rank", devices)
        self.placement = placement_of_blocks(placement)
        self.shape, self.devices, self.layer = shape, list(devices), layer
        self.plan = replace(plan, dp=1, tp=1, pp=1, cp=1, ep=1, shard=None, zero=0, stage_layers=None).on(
            devices[0]
        )
        self.seconds = cache(seconds or device_seconds(shape, self.plan, self.devices))
        group = shape.heads // shape.kv_heads
        self.unit = {"heads": group, "columns": 1, "sequence": 1}
        self.totals = {"heads": shape.heads, "columns": shape.ffn, "sequence": shape.sequence}
        each, self.fixed = share_bytes(shape, self.plan, self.placement)
        if set(self.placement.values()) == {"whole"}:
            refuse("placement", "one that splits a block", dict(self.placement))
        longest = longest_part_seconds(shape, self.plan, self.placement, self.devices, layer)
        self.parts = {
            name: Part(
                name,
                self.totals[name] // self.unit[name],
                self._timed(name),
                each[name],
                longest if name == "sequence" else 0.0,
            )
            for name in self.totals
            if name in self.placement.values()
        }
        self.room = [device.memory - self.fixed for device in self.devices]

    def _together(self, blocks: Sequence[str]) -> dict[str, list[str]]:
        """List -> the blocks that it decides about, in the order of one direction.

        No message stands between a whole block and the one that follows it, so a whole block counts with the next one
        that is split.
        """
        found: dict[str, list[str]] = {}
        for i, block in enumerate(blocks):
            after = [self.placement[b] for b in (*blocks[i:], *blocks[:i]) if self.placement[b] != "whole"]
            found.setdefault(after[0], []).append(block)
        return found

    def _timed(self, name: str) -> Callable[[int, int], tuple[float, float]]:
        blocks = list(self.placement)
        ahead, back = self._together(blocks)[name], self._together(blocks[::-1])[name]

        def seconds(rank: int, units: int) -> tuple[float, float]:
            of_block = {
                block: self.block_seconds(block, rank, units * self.unit[name]) for block in {*ahead, *back}
            }
            return sum(of_block[block][0] for block in ahead), sum(of_block[block][1] for block in back)

        return seconds

    def block_seconds(self, block: str, rank: int, share: int) -> tuple[float, float]:
        """``share`` counts what the block is split by; a whole block takes no notice of it."""
        kind, placed = block.partition("_")[0], self.placement[block]
        if placed == "whole":
            share = self.totals[{"attention": "heads", "mlp": "columns", "connection": "sequence"}[kind]]
        return self.seconds(TIMED_AS[kind, placed], rank, share)

    def even(self) -> list[Shares]:
        return [chunk_sizes(part.total, len(self.devices)) for part in self.parts.values()]

    def memory(self, dealt: Sequence[Shares]) -> list[float]:
        """Bytes that each rank holds."""
        of_each = [part.bytes for part in self.parts.values()]
        return [self.fixed + sum(map(mul, of_each, shares)) for shares in zip(*dealt, strict=True)]

    def checked(self, name: str, shares: Sequence[int]) -> Shares:
        """A list as the user gave it, in units."""
        if name not in self.parts:
            raise ValueError(
                f"{name} must be None: this placement splits {' and '.join(self.parts)}, not {shares}"
            )
        given = deal_shares(
            len(self.devices), self.shape.heads, self.shape.ffn, {name: shares}, group=self.unit["heads"]
        )
        own = getattr(given, name)
        if name == "sequence":
            own = given.tokens(self.shape.sequence)
        return [n // self.unit[name] for n in own]

    def priced(self, dealt: Sequence[Shares]) -> LayerSplit:
        lists = dict(zip(self.parts, dealt, strict=True))
        shares = {name: [n * self.unit[name] for n in units] for name, units in lists.items()}
        forward, backward = {}, {}
        for block, name in self.placement.items():
            own = shares.get(name, [0] * len(self.devices))
            both = [self.block_seconds(block, rank, share) for rank, share in enumerate(own)]
            forward[block], backward[block] = map(list, zip(*both, strict=True))
        return LayerSplit(
            self.placement,
            shares,
            forward,
            backward,
            {name: sum(part.slowest(lists[name])) for name, part in self.parts.items()},
            message_seconds(
                self.shape,
                self.plan,
                self.placement,
                self.devices,
                shares.get("sequence", [self.shape.sequence]),
                self.layer,
            ),
            self.memory(dealt),
        )
