"""Data parallelism over time: which part of its communication overlaps with computation, and which part does not.

Both functions keep two lanes per rank. ``"compute"`` follows the layers; ``"communication"`` runs one collective
at a time, in the order in which they are issued, and each begins when the last rank has issued it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from simulator.inputs.checks import (
    amounts,
    at_least,
    not_negative,
    positive_or_infinite,
    speeds_of,
    yes_or_no,
)
from simulator.ledgers.timeline import Span, Timeline
from simulator.predict.collective_traffic import sent_bytes

MEBIBYTE = 1024 * 1024
STEPS = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}  # times p - 1: messages in a row in a ring


class _Group:
    """A group of ranks: each computes at its own speed, and a collective starts when the last of them is ready."""

    def __init__(self, speeds: Sequence[float], latency: float, bandwidth: float) -> None:
        self.speeds, self.latency, self.bandwidth = speeds, latency, bandwidth
        self.free = [0.0] * len(speeds)  # when each rank has finished computing
        self.link_free = 0.0
        self.spans: list[Span] = []

    def compute(self, name: str, seconds: float, after: float = 0) -> list[float]:
        """Every rank computes, not before ``after``; returns when each began."""
        starts = [max(free, after) for free in self.free]
        self.free = [start + seconds / speed for start, speed in zip(starts, self.speeds, strict=True)]
        for rank, (start, end) in enumerate(zip(starts, self.free, strict=True)):
            self.spans.append(Span(rank, "compute", name, start, end))
        return starts

    def communicate(self, collective: str, what: str, size: float, issued: Sequence[float]) -> float:
        """A ring collective over ``size`` bytes; returns when it ends."""
        p = len(self.speeds)
        sent = sent_bytes(collective, size, p)
        start = max(self.link_free, *issued)
        self.link_free = start + STEPS[collective] * (p - 1) * self.latency + sent / self.bandwidth
        for rank in range(p):
            self.spans.append(Span(rank, "communication", what, start, self.link_free))
        return self.link_free


def ddp_timeline(
    forward: Sequence[float],
    backward: Sequence[float],
    gradient_bytes: Sequence[float],
    *,
    ranks: int,
    latency: float = 0,
    bandwidth: float = inf,
    bucket_bytes: float | None = None,
    first_bucket_bytes: float | None = None,
    overlap: bool = True,
    update: float = 0,
    speeds: Sequence[float] | None = None,
) -> Timeline:
    """One step of data parallelism with gradient buckets (PyTorch DDP, arXiv:2006.15704).

    Args:
        forward, backward: seconds of each layer, in the model's order.
        gradient_bytes: bytes of each layer's gradients. Backward makes them last layer first, and so they fill
            the buckets.
        ranks: size of the data-parallel group.
        latency, bandwidth: seconds of one message; bytes per second that a rank sends.
        bucket_bytes: a bucket is reduced once it holds that many bytes or more; 0: one layer each. None: 25 MiB,
            and 1 MiB for the first, which can then be sent early (PyTorch's defaults).
        first_bucket_bytes: the same for the first bucket; None: no difference.
        overlap: False: nothing is sent before backward has ended.
        update: seconds of the optimizer's step, once all gradients are there.
        speeds: of every rank, 1 being the seconds as given.

    Returns:
        Spans ``"forward 0"``, ``"backward 0"`` (layers), ``"bucket 0"``… and ``"update"``.
    """
    _same_length(forward=forward, backward=backward, gradient_bytes=gradient_bytes)
    not_negative(update=update)
    for name, size in {"bucket_bytes": bucket_bytes, "first_bucket_bytes": first_bucket_bytes}.items():
        if size is not None:
            positive_or_infinite(**{name: size}) if size else not_negative(**{name: size})
    group = _group(ranks, speeds, latency, bandwidth)
    for layer, seconds in enumerate(forward):
        group.compute(f"forward {layer}", seconds)
    yes_or_no(overlap=overlap)
    buckets: list[tuple[float, list[float]]] = []  # bytes, and when it was full on each rank
    if bucket_bytes is None:
        bucket_bytes, first_bucket_bytes = 25 * MEBIBYTE, MEBIBYTE
    held, limit = 0.0, bucket_bytes if first_bucket_bytes is None else first_bucket_bytes
    for layer in reversed(range(len(backward))):
        group.compute(f"backward {layer}", backward[layer])
        held += gradient_bytes[layer]
        if held >= limit or layer == 0:
            buckets.append((held, group.free))
            held, limit = 0.0, bucket_bytes
    for number, (size, full) in enumerate(buckets):
        group.communicate("all-reduce", f"bucket {number}", size, full if overlap else group.free)
    if update:
        group.compute("update", update, after=group.link_free)
    return Timeline(group.spans)


def fsdp_timeline(
    forward: Sequence[float],
    backward: Sequence[float],
    unit_bytes: Sequence[float],
    *,
    ranks: int,
    latency: float = 0,
    bandwidth: float = inf,
    prefetch: int = 1,
    reshard: bool = True,
    gradient_bytes: Sequence[float] | None = None,
    update: float = 0,
    speeds: Sequence[float] | None = None,
) -> Timeline:
    """One step of fully sharded data parallelism (arXiv:2304.11277; ZeRO 3, arXiv:1910.02054).

    Args:
        forward, backward: seconds of each unit (block), in the model's order.
        unit_bytes: bytes of each unit's parameters, whole, as they are gathered.
        ranks: size of the group over which they are sharded.
        latency, bandwidth: seconds of one message; bytes per second that a rank sends.
        prefetch: units gathered ahead: the gather of a unit is issued when the unit that many places earlier
            begins to compute. 0: when the unit before has ended, so nothing overlaps.
        reshard: drop a unit's parameters after its forward, and gather them again for its backward.
        gradient_bytes: bytes of each unit's gradients; None: as many as its parameters.
        update: seconds of the optimizer's step, once all gradients are there.
        speeds: of every rank, 1 being the seconds as given.

    Returns:
        Spans ``"forward block 0"``, ``"backward block 0"``, ``"all-gather block 0"``,
        ``"reduce-scatter block 0"``… and ``"update"``.
    """
    gradient_bytes = unit_bytes if gradient_bytes is None else gradient_bytes
    _same_length(forward=forward, backward=backward, unit_bytes=unit_bytes, gradient_bytes=gradient_bytes)
    at_least(0, prefetch=prefetch)
    not_negative(update=update)
    yes_or_no(reshard=reshard)
    group = _group(ranks, speeds, latency, bandwidth)

    def gather(unit: int, issued: Sequence[float]) -> float:
        return group.communicate("all-gather", f"all-gather block {unit}", unit_bytes[unit], issued)

    def run(phase: str, seconds: Sequence[float], units: Sequence[int], gathers: bool) -> None:
        ready = {unit: gather(unit, group.free) for unit in units[:prefetch]} if gathers else {}
        for place, unit in enumerate(units):
            if gathers and not prefetch:
                ready[unit] = gather(unit, group.free)
            began = group.compute(f"{phase} block {unit}", seconds[unit], after=ready.get(unit, 0))
            if gathers and prefetch and place + prefetch < len(units):
                ahead = units[place + prefetch]
                ready[ahead] = gather(ahead, began)
            if phase == "backward":
                name = f"reduce-scatter block {unit}"
                group.communicate("reduce-scatter", name, gradient_bytes[unit], group.free)

    units = range(len(forward))
    run("forward", forward, units, gathers=True)
    run("backward", backward, units[::-1], gathers=reshard)
    if update:
        group.compute("update", update, after=group.link_free)
    return Timeline(group.spans)


def _group(ranks: int, speeds: Sequence[float] | None, latency: float, bandwidth: float) -> _Group:
    at_least(1, ranks=ranks)
    not_negative(latency=latency)
    positive_or_infinite(bandwidth=bandwidth)
    return _Group(speeds_of(speeds, ranks), latency, bandwidth)


def _same_length(**lists: Sequence[float]) -> None:
    amounts(**lists)
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1 or not next(iter(lengths.values())):
        described = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"each list needs one number for every layer, but {described}")
