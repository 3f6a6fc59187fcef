"""When compression pays: the time that compressing takes, against the time that the link saves.

A rank's exchange is compressing, then messages of the alpha-beta kind, then computing goes on. A method with fewer
bytes wins on a slow link. On a fast link the time to compress is longer than what is saved, and plain DDP wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from simulator.inputs.checks import at_least, not_negative, refuse
from simulator.inputs.hardware import Link
from simulator.ledgers.traffic import Traffic

_ROUNDS = {
    "all-reduce": 2,
    "all-gather": 1,
    "reduce-scatter": 1,
    "all-to-all": 1,
    "broadcast": 1,
    "reduce": 1,
}


@dataclass(frozen=True)
class Method:
    """A way to exchange gradients or weights, as its costs.

    Args:
        name: as it is called in tables and pictures.
        sent: bytes that one rank sends in one exchange.
        messages: messages of one exchange that follow each other, each with the link's latency.
        compress: seconds that one rank computes in one exchange: compressing and decompressing.
        every: steps from one exchange to the next.
    """

    name: str
    sent: float
    messages: int = 1
    compress: float = 0.0
    every: int = 1

    def __post_init__(self) -> None:
        not_negative(sent=self.sent, compress=self.compress)
        at_least(0, messages=self.messages)
        at_least(1, every=self.every)

    @classmethod
    def of(cls, name: str, traffic: Traffic, compress: float = 0.0, every: int = 1) -> Method:
        """From the traffic of one exchange. Around a ring of p ranks an all-reduce is 2 (p - 1) messages, its halves
        and an all-to-all are p - 1; all sends of a rank travel at the same time."""
        rounds = sum(
            _ROUNDS.get(row.collective, 0) * (row.group_size - 1) * row.calls for row in traffic.rows
        )
        rounds += bool(traffic.of("send").rows)
        return cls(name, traffic.sent, rounds, compress, every)


def communication_seconds(method: Method, link: Link) -> float:
    """Seconds of messages in a step; where a method sends every H steps, the mean: 1/H of an exchange."""
    return link.seconds(method.sent, method.messages) / method.every


def exchange_step_seconds(method: Method, link: Link, compute: float, hidden: float = 0.0) -> float:
    """The mean step: computing, compressing, and the messages that backward does not hide.

    Args:
        compute: seconds of forward, backward and the update.
        hidden: seconds of backward beside which messages can travel; 0: nothing overlaps.
    """
    not_negative(compute=compute, hidden=hidden)
    exposed = max(0.0, communication_seconds(method, link) - hidden)
    return compute + method.compress / method.every + exposed


def crossing_bandwidth(method: Method, reference: Method, latency: float = 0.0) -> float:
    """Bytes a second below which a step with ``method`` is shorter than one with ``reference``, without overlap.

    Both steps take the same time where the bytes saved, divided by the bandwidth, are the seconds added:
    B = (sent_reference - sent) / (compress - compress_reference + latency x more messages). Infinity: ``method`` is
    never slower. 0: never faster.

    Raises:
        ValueError: ``method`` sends more and takes less time to compress: then ask the other way round.
    """
    not_negative(latency=latency)
    saved = reference.sent / reference.every - method.sent / method.every
    added = _seconds_without_bytes(method, latency) - _seconds_without_bytes(reference, latency)
    if saved < 0 and added < 0:
        refuse(
            "the method",
            f"one that sends less than {reference.name}, or ask the other way round",
            method.name,
        )
    if saved <= 0:
        return 0.0
    return saved / added if added > 0 else inf


def fastest(methods: Sequence[Method], link: Link, hidden: float = 0.0) -> Method:
    """The method with the shortest step on this link; of equals the first."""
    if not methods:
        refuse("methods", "a list of at least one method", list(methods))
    return min(methods, key=lambda method: exchange_step_seconds(method, link, 0.0, hidden))


def _seconds_without_bytes(method: Method, latency: float) -> float:
    return (method.compress + latency * method.messages) / method.every
