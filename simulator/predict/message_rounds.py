"""Messages between ranks: in which round each one can be delivered, and which ranks wait for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """One thing a rank did, in its own order: it sent to ``peer``, or began to receive from it.

    Args:
        kind: ``"send"`` or ``"receive"``.
        size: bytes.
        values: what was sent, where that was recorded and is short.
    """

    kind: str
    peer: int
    size: int = 0
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """A send and the receive it met. ``round`` counts from 1."""

    round: int
    sender: int
    receiver: int
    size: int = 0
    values: tuple[int, ...] = ()


def in_rounds(logs: Sequence[Sequence[Event]]) -> list[Message]:
    """The messages of a finished run, each in the earliest round in which it can travel.

    In one round a rank sends at most one message and receives at most one; it can do both. A message leaves
    after all that its sender sent and received before it, and arrives after all that its receiver received.

    Args:
        logs: what each rank did, in its own order.

    Raises:
        ValueError: a message is never received, or a receive has no matching send.
    """
    messages, left = _run(logs, blocking=False)
    for rank, event in left.items():
        raise ValueError(f"rank {rank} waits for ever to {event.kind}, and rank {event.peer} never comes")
    return messages


@dataclass(frozen=True, slots=True)
class Meeting:
    """How blocking programs ended: after so many rounds, and what each rank that is stuck waits in."""

    rounds: int
    waiting: dict[int, tuple[str, int]]

    def __str__(self) -> str:
        if not self.waiting:
            return f"everyone is done after {self.rounds} rounds"
        words = {"send": "to send to", "receive": "to receive from"}
        waits = [f"rank {r} waits {words[kind]} {peer}" for r, (kind, peer) in self.waiting.items()]
        return f"stuck after {self.rounds} rounds: {', '.join(waits)}"


def rendezvous(programs: Sequence[Sequence[tuple[str, int]]]) -> Meeting:
    """Run programs of blocking steps: a send ends only when its receiver receives.

    Args:
        programs: for each rank its steps, ``("send", peer)`` or ``("receive", peer)``, one after the other.

    Raises:
        ValueError: a step of another kind, or with a peer that is not there.
    """
    for kind, peer in (step for program in programs for step in program):
        if kind not in ("send", "receive") or peer not in range(len(programs)):
            raise ValueError(
                f"a step is ('send', peer) or ('receive', peer) with a peer from 0 to {len(programs) - 1}, "
                f"not {(kind, peer)}"
            )
    messages, left = _run([[Event(*step) for step in program] for program in programs], blocking=True)
    rounds = max((message.round for message in messages), default=0)
    return Meeting(rounds, {rank: (event.kind, event.peer) for rank, event in left.items()})


def _run(logs: Sequence[Sequence[Event]], blocking: bool) -> tuple[list[Message], dict[int, Event]]:
    """Let every pair that can meet do so, round by round; what is left at the end is each rank's first open event.

    Blocking ranks do one thing after the other. The others receive without waiting for what they have sent.
    """
    sends = [deque((i, e) for i, e in enumerate(log) if e.kind == "send") for log in logs]
    receives = [deque((i, e) for i, e in enumerate(log) if e.kind == "receive") for log in logs]
    messages: list[Message] = []
    turn = 0
    while True:
        turn += 1
        out, into = {}, {}
        for rank, (sending, receiving) in enumerate(zip(sends, receives, strict=True)):
            if sending and (not receiving or sending[0] < receiving[0]):
                out[rank] = sending[0][1]
            if receiving and (not blocking or not sending or receiving[0] < sending[0]):
                into[rank] = receiving[0][1].peer
        met = [rank for rank, event in out.items() if into.get(event.peer) == rank]
        if not met:
            first = [min([*s, *r], default=None) for s, r in zip(sends, receives, strict=True)]
            return messages, {rank: pair[1] for rank, pair in enumerate(first) if pair}
        for rank in met:
            event = sends[rank].popleft()[1]
            receives[event.peer].popleft()
            messages.append(Message(turn, rank, event.peer, event.size, event.values))
