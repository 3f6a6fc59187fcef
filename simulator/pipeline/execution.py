"""A simulated schedule: its timeline, its critical path, and the cause of every gap."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import repeat
from typing import NamedTuple

from simulator.ledgers.timeline import Span, Timeline
from simulator.pipeline.actions import Action, Schedule

Output = tuple[str, int, int]  # "F" or "B", stage, microbatch: what an action leaves behind
Send = tuple[int, int, float, float]  # sender, position of the action whose output it is, start, end


class Node(NamedTuple):
    """An action, or the transfer of its output, by rank and position, and when it ended."""

    end: float
    transfer: bool
    rank: int
    at: int


class Gap(NamedTuple):
    """A time in which a rank computed nothing, and why: ``"rank 2 waits for B3 of rank 3"``."""

    rank: int
    start: float
    end: float
    cause: str


def inputs_of(schedule: Schedule, action: Action) -> list[Output]:
    """The outputs an action needs: its own earlier halves first, then what another stage sends."""
    kind, stage, i = action
    if kind == "F":
        return [("F", stage - 1, i)] if stage else []
    if kind == "W":
        return [("B", stage, i)]
    return [("F", stage, i)] + ([("B", stage + 1, i)] if stage < schedule.stages - 1 else [])


class Execution(Timeline):
    """The timeline of a schedule; ``starts`` and ``ends`` are aligned with ``schedule.actions``.

    Args:
        schedule: what was run.
        starts, ends: for every rank, one number for each of its actions.
        sends: transfers between ranks: sender, position of the action whose output it is, start, end.
        blocking: a rank waited for its own transfers to end.
        together: the pairs of ``schedule.overlapped`` ran as one.
    """

    schedule: Schedule
    starts: Sequence[Sequence[float]]
    ends: Sequence[Sequence[float]]
    sends: Sequence[Send]
    blocking: bool
    pairs: Sequence[Collection[int]]

    def __init__(
        self,
        schedule: Schedule,
        starts: Sequence[Sequence[float]],
        ends: Sequence[Sequence[float]],
        sends: Sequence[Send] = (),
        *,
        blocking: bool = False,
        together: bool = False,
    ) -> None:
        # A frozen dataclass by inheritance, so plain assignment is closed.
        vars(self).update(schedule=schedule, starts=starts, ends=ends, sends=sends, blocking=blocking)
        pairs = schedule.overlapped if together else ()
        vars(self).update(pairs=pairs or [frozenset()] * schedule.ranks)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Made when they are first asked for: a large schedule is simulated faster than it is spelled out."""
        spans = []
        for rank, actions in enumerate(self.schedule.actions):
            if self.pairs[rank]:
                spans += [
                    self._span(rank, at) for at in range(len(actions)) if at - 1 not in self.pairs[rank]
                ]
            else:
                names = map(self.schedule.span_name, actions)
                rows = zip(
                    repeat(rank), repeat("compute"), names, self.starts[rank], self.ends[rank], strict=False
                )
                spans += map(Span._make, rows)
        return tuple(sorted(spans + [self._send(send) for send in self.sends]))

    def _span(self, rank: int, at: int) -> Span:
        at -= at - 1 in self.pairs[rank]
        actions = self.schedule.actions[rank]
        name = self.schedule.span_name(actions[at])
        if at in self.pairs[rank]:
            name += " + " + self.schedule.span_name(actions[at + 1])
        return Span(rank, "compute", name, self.starts[rank][at], self.ends[rank][at])

    def _send(self, send: Send) -> Span:
        rank, at, start, end = send
        name = self.schedule.span_name(self.schedule.actions[rank][at])
        return Span(rank, "communication", f"send {name}", start, end)

    @cached_property
    def start(self) -> float:
        return min((starts[0] for starts in self.starts if starts), default=0.0)

    @cached_property
    def end(self) -> float:
        last = [ends[-1] for ends in self.ends if ends]
        return max([*last, *(send[3] for send in self.sends)], default=0.0)

    @property
    def peak_in_flight(self) -> list[int]:
        """For every rank: the most microbatches at once whose forward has begun and whose backward has not ended.

        Chunks count one by one; a backward has ended with its ``"B"``, even where its ``"W"`` comes later.
        """
        peaks = []
        for actions in self.schedule.actions:
            alive = peak = 0
            for action in actions:
                alive += {"F": 1, "W": 0}.get(action.kind, -1)
                peak = max(peak, alive)
            peaks.append(peak)
        return peaks

    @cached_property
    def _made(self) -> dict[Output, tuple[int, int]]:
        """Where each output was made: rank and position. No action takes weight gradients as its input."""
        made = {}
        for rank, actions in enumerate(self.schedule.actions):
            for at, (kind, stage, i) in enumerate(actions):
                if kind != "W":
                    made[kind[0], stage, i] = rank, at
        return made

    @cached_property
    def _sent(self) -> dict[tuple[int, int], tuple[Send, Send | None]]:
        """Transfers by the action whose output they carry, each with the one before it on the same link."""
        sent, previous = {}, {}
        for send in self.sends:
            sent[send[:2]] = send, previous.get(send[0])
            previous[send[0]] = send
        return sent

    def _suppliers(self, rank: int, at: int) -> list[Node]:
        """What this action gets from other ranks, and when it is there."""
        found = []
        for position in (at, at + 1) if at in self.pairs[rank] else (at,):
            for output in inputs_of(self.schedule, self.schedule.actions[rank][position]):
                maker = self._made[output]
                if maker[0] != rank:
                    sent = self._sent.get(maker)
                    found.append(
                        Node(sent[0][3], True, *maker) if sent else Node(self._end(maker), False, *maker)
                    )
        return found

    def _end(self, action: tuple[int, int]) -> float:
        return self.ends[action[0]][action[1]]

    def _before(self, node: Node) -> Node | None:
        """What ended last of all that this action or transfer had to wait for; on a tie, what is on its rank."""
        _, transfer, rank, at = node
        held = []
        if transfer:
            held.append(Node(self._end((rank, at)), False, rank, at))
            if previous := self._sent[rank, at][1]:
                held.append(Node(previous[3], True, *previous[:2]))
        else:
            at -= at - 1 in self.pairs[rank]
            if at:
                held.append(Node(self._end((rank, at - 1)), False, rank, at - 1))
            if self.blocking and (rank, at - 1) in self._sent:
                held.append(Node(self._sent[rank, at - 1][0][3], True, rank, at - 1))
            held += self._suppliers(rank, at)
        return max(held, key=lambda n: n.end, default=None)

    def critical_path(self) -> list[Span]:
        """The chain of work and transfers that decided the makespan, in order of time: speed up one of these.

        Where two chains are equally long, the one that stays on a rank is returned.
        """
        return [
            self._send(self._sent[rank, at][0]) if transfer else self._span(rank, at)
            for _, transfer, rank, at in self.critical_nodes()
        ]

    def critical_nodes(self) -> list[Node]:
        """``critical_path`` by places in the schedule."""
        ends = [Node(end, False, rank, at) for rank, e in enumerate(self.ends) for at, end in enumerate(e)]
        node = max(ends, key=lambda n: n.end, default=None)
        path = []
        while node is not None:
            path.append(node)
            node = self._before(node)
        return path[::-1]

    def idle_gaps(self) -> list[Gap]:
        """Every time in which a rank's compute lane was empty between the first start and the last end."""
        gaps = []
        first, last = self.start, max(e[-1] for e in self.ends if e)
        for rank in range(self.schedule.ranks):
            free = first
            for at, start in enumerate(self.starts[rank]):
                if start > free:
                    gaps.append(Gap(rank, free, start, self._cause(rank, at)))
                free = self.ends[rank][at]
            if last > free:
                gaps.append(Gap(rank, free, last, f"rank {rank} has finished"))
        return gaps

    def _cause(self, rank: int, at: int) -> str:
        """Why nothing ran on the rank just before this action."""
        before = self._before(Node(0, False, rank, at))
        assert before is not None  # only the first action has nothing before it, and no gap
        _, transfer, maker, position = before
        name = self.schedule.span_name(self.schedule.actions[maker][position])
        if maker == rank and transfer:
            return f"rank {rank} is still sending {name}"
        return f"rank {rank} waits for {name} of rank {maker}"
