"""The checks of 11.1 and 11.2: orders of one rank after the other, made into a schedule, and simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import index
from typing import Any

from course_lib.grading.checks.pipeline_mistakes import IN_TURN, SPLIT, Mistakes, Orders
from course_lib.grading.report import Report, check
from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.engine import simulate
from simulator.pipeline.validate import validate_schedule

Order = Callable[[int, int, int], Sequence[tuple[str, int]]]

# ranks, microbatches: more microbatches than ranks, as many, fewer; one rank, one microbatch; odd numbers.
SIZES = [(4, 8), (3, 7), (2, 5), (4, 4), (5, 3), (1, 4), (4, 1)]
ENDS = "every rank does all its work once, and no rank waits for ever"


def read_orders(report: Report, order: Order, ranks: int, microbatches: int, kinds: str) -> Orders:
    """What the answer gives for every rank, as lists of pairs of a kind and a microbatch."""
    orders = []
    for rank in range(ranks):
        pairs = []
        for pair in order(rank, ranks, microbatches) or ():
            try:
                kind, microbatch = pair
                microbatch = index(microbatch)
            except (TypeError, ValueError):
                report.fail(
                    f"rank {rank} has {pair!r} in its list",
                    task=f"a list of pairs such as `({kinds[0]!r}, 0)`",
                )
            if not (isinstance(kind, str) and len(kind) == 1 and kind in kinds):
                report.fail(
                    f"rank {rank} has the kind {kind!r} in its list; the kinds are {', '.join(kinds)}",
                    task=f"a list of pairs such as `({kinds[0]!r}, 0)`",
                )
            if not 0 <= microbatch < microbatches:
                report.fail(
                    f"rank {rank} has {kind}{microbatch} in its list; with "
                    f"{_plural(microbatches, 'microbatch', 'es')} the last one is {microbatches - 1}",
                    task="There may be fewer microbatches than ranks.",
                )
            pairs.append((kind, microbatch))
        orders.append(pairs)
    return orders


def schedule_of(orders: Orders, microbatches: int, names: Mapping[str, str]) -> Schedule:
    """The orders as what the simulator draws and the executor runs; ``names``: what it calls each kind."""
    actions = tuple(
        tuple(Action(names[kind], rank, i) for kind, i in pairs) for rank, pairs in enumerate(orders)
    )
    return Schedule("your order", len(orders), microbatches, 1, actions)


def _at_once(pairs: Sequence[tuple[str, int]], last: str) -> int:
    """The most microbatches at once that have begun, and of which the part ``last`` has not ended."""
    change = [(kind == "F") - (kind == last) for kind, _ in pairs]
    return max(accumulate(change), default=0)


def _plural(count: int, what: str, ending: str = "s") -> str:
    return f"{count} {what}{ending * (count != 1)}"


def _complete(orders: Orders, microbatches: int, kinds: Sequence[str]) -> bool:
    """Whether every rank does its work once, in whichever order."""
    work = sorted((kind, i) for kind in kinds for i in range(microbatches))
    return all(sorted(pairs) == work for pairs in orders)


def _judge(
    report: Report,
    order: Order,
    size: tuple[int, int],
    names: Mapping[str, str],
    mistakes: Mistakes,
    room: Callable[[int], int],
    shortest: int,
    tasks: tuple[str, str, str],
) -> None:
    """The facts of one size.

    Args:
        names: the answer's kinds, the last of which ends a microbatch, and the simulator's.
        room: rank -> how many microbatches it may have at once.
        shortest: the target, in units of time.
        tasks: the sentences about the work of every rank, about waiting, and about the room.
    """
    p, m = size
    orders = read_orders(report, order, p, m, "".join(names))
    schedule, problem = schedule_of(orders, m, names), ""
    try:
        validate_schedule(schedule)
    except ValueError as error:
        problem = str(error).replace("; ", "\n")
    given: dict[str, Any] = {"got": orders, "mistakes": mistakes, "given": (p, m)}
    complete = _complete(orders, m, list(names))
    report.true(not problem, ENDS, problem, **given, task=tasks[1] if complete else tasks[0])
    last = list(names)[-1]
    held = [_at_once(pairs, last) for pairs in orders]
    over = next((r for r in range(p) if held[r] > room(r)), None)
    wrong = (
        ""
        if over is None
        else f"rank {over} has {held[over]} microbatches at once, and room for {room(over)}"
    )
    report.true(
        over is None, "no rank has more microbatches at once than it may", wrong, **given, task=tasks[2]
    )
    length = round(simulate(schedule, 1, 1, 1).makespan)
    made = {text: program(p, m) for text, program in mistakes.items()}
    report.at_most(
        "units of time for the step",
        length,
        shortest,
        mistakes={text: length if wrong == orders else None for text, wrong in made.items()},
        given=(),
    )


@check
def check_11_1(report: Report, order_of_rank: Order) -> None:
    for p, m in SIZES:
        with report.case(f"{_plural(p, 'rank')}, {_plural(m, 'microbatch', 'es')}"):
            _judge(
                report,
                order_of_rank,
                (p, m),
                {"F": "F", "B": "BW"},
                IN_TURN,
                room=lambda rank, p=p: p - rank,
                shortest=3 * (m + p - 1),
                tasks=(
                    "Every rank does the forward and the backward of every microbatch, each once.",
                    "no rank may wait for ever",
                    "at most `ranks - rank` microbatches have begun and not ended",
                ),
            )


@check
def check_11_2(report: Report, order_with_weights: Order) -> None:
    for p, m in SIZES:
        with report.case(f"{_plural(p, 'rank')}, {_plural(m, 'microbatch', 'es')}"):
            _judge(
                report,
                order_with_weights,
                (p, m),
                {"F": "F", "B": "B", "W": "W"},
                SPLIT,
                room=lambda _, p=p: p,
                shortest=max(3 * m + p - 1, 2 * m + 2 * p - 1),
                tasks=(
                    "Every rank does `F`, `B` and `W` of every microbatch, each once.",
                    "No rank may wait for ever",
                    "at most `ranks` microbatches have begun and not ended",
                ),
            )
