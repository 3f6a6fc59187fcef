"""Chapter 04: answers whose ranks wait for ever, and the mistakes that make them wait, told by who waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from course_lib.grading.checks.collectives_ranks import Outcome, run, waiting
from course_lib.grading.complaints import explain
from course_lib.grading.report import Report
from course_lib.runtime import RankError
from simulator.inputs.chunks import chunk_sizes
from simulator.predict.message_rounds import rendezvous

Waiting = dict[int, tuple[str, int]]  # rank -> what it waits in, and for whom
Stuck = dict[str, Callable[..., Waiting]]


def _waits(programs: list[list[list[int | None]]]) -> Waiting:
    """Play steps that send and receive at the same time; who waits for ever, and to whom it sends.

    Args:
        programs: for each rank its steps, ``[to, source]``; None where the chunk is empty, so that nothing travels.
    """
    to = [{peer for peer, _ in steps if peer is not None} for steps in programs]
    left = [[list(step) for step in steps] for steps in programs]
    moved = True
    while moved:
        moved = False
        for rank, steps in enumerate(left):
            if steps and (peer := steps[0][0]) is not None and left[peer] and left[peer][0][1] == rank:
                steps[0][0] = left[peer][0][1] = None
                moved = True
            if steps and steps[0] == [None, None]:
                moved = bool(steps.pop(0))
    return {rank: ("exchange", min(to[rank])) for rank, steps in enumerate(left) if steps and to[rank]}


def _around(
    sizes: Sequence[int], first: int, towards: int, takes_part: Callable[[int, int], bool]
) -> Waiting:
    """Chunks of these sizes go around a ring; in a step without ``takes_part(rank, chunk)`` a rank does nothing."""
    p, programs = len(sizes), []
    for rank in range(p):
        sent = [(rank + first - towards * step) % p for step in range(p - 1)]
        programs.append(
            [
                [
                    (rank + towards) % p if sizes[chunk] else None,
                    (rank - towards) % p if sizes[(chunk - towards) % p] else None,
                ]
                for chunk in sent
                if takes_part(rank, chunk)
            ]
        )
    return _waits(programs)


SKIPPED = "when a rank does not receive in a step in which it has nothing to send"
WITHOUT_ROWS = "when a rank without rows of its own does not pass on the rows of others"


def stuck_sums(rows: int) -> Stuck:
    """04.1, for a tensor with so many rows."""
    return {
        SKIPPED: lambda p: _around(sizes := chunk_sizes(rows, p), 1, -1, lambda _, chunk: sizes[chunk] > 0)
    }


STUCK_GATHER: Stuck = {
    SKIPPED: lambda p, rows: _around(rows, 0, 1, lambda _, chunk: rows[chunk] > 0),
    WITHOUT_ROWS: lambda p, rows: _around(rows, 0, 1, lambda rank, _: rows[rank] > 0),
}


def _past_the_last_position(ranks: int, src: int) -> Waiting:
    """Every rank that has the tensor sends it on, also where no position is left to send it to."""
    programs: list[list[tuple[str, int]]] = []
    for rank in range(ranks):
        position, steps = (rank - src) % ranks, []
        for distance in (1 << k for k in range((ranks - 1).bit_length())):
            if position < distance:
                steps.append(("send", (rank + distance) % ranks))
            elif position < 2 * distance:
                steps.append(("receive", (rank - distance) % ranks))
        programs.append(steps)
    return rendezvous(programs).waiting


STUCK_TREE: Stuck = {
    "when ranks send beyond the last position, where no rank receives": _past_the_last_position,
}


def _ranks_that_are_their_own_peer(ranks: int, src: int) -> set[int]:
    """Who would send to itself, or receive from itself, were a position taken for a rank."""
    found = set()
    for rank in range(ranks):
        position = (rank - src) % ranks
        for distance in (1 << k for k in range((ranks - 1).bit_length())):
            if (position < distance and position + distance == rank) or (
                distance <= position < 2 * distance and position - distance == rank
            ):
                found.add(rank)
    return found


def play_or_wait(
    report: Report,
    answer: Callable[..., Any],
    inputs: Sequence[Tensor],
    *more: Any,
    stuck: Stuck | None = None,
) -> Outcome:
    """``run``; where the ranks wait for ever, the mistake is told by who waits for whom.

    Args:
        stuck: for mistakes that make ranks wait, who then waits; called with the number of ranks and ``more``.
    """
    try:
        return run(report, answer, inputs, *more)
    except RankError as error:
        if not (waits := waiting(error)):
            raise
        everyone = set(waits) == set(range(len(inputs)))
        mistakes: dict[str, Any] = {text: who(len(inputs), *more) for text, who in (stuck or {}).items()}
        if everyone and all(kind == "send" for kind, _ in waits.values()):
            mistakes["when every rank sends first, so that no rank receives"] = waits
        report.true(False, "", "\n".join(explain(error)), got=waits, mistakes=mistakes)
        raise


def own_peer(report: Report, error: RankError, ranks: int, src: int) -> None:
    """A rank that is its own peer took a position for a rank, where just that rank would."""
    if "cannot send to itself" not in str(error):
        raise error
    meant = error.rank if error.rank in _ranks_that_are_their_own_peer(ranks, src) else None
    mistakes = {"when a position is taken for a rank: position k is rank (src + k) % p": meant}
    report.true(False, "", "\n".join(explain(error)), got=error.rank, mistakes=mistakes)
