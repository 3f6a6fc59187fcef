"""The checks of chapter 07 that need no ranks: in which order units come and go, and how large they may be."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.grading.report import Report, check
from simulator.predict.unsharded import unsharded_history

Event = tuple[str, int]


@check
def check_07_2(report: Report, step_events: Callable[[int, int], list[Event]]) -> None:
    for units, ahead in [(4, 1), (6, 2), (3, 0), (5, 1), (2, 3)]:
        report.case(f"{units} units, {ahead} ahead")
        events = [tuple(event) for event in step_events(units, ahead)]
        computed = [event for event in events if event[0] in ("forward", "backward")]
        forward = [("forward", u) for u in range(units)]
        report.equal(
            "forward in order, backward in the opposite one",
            computed,
            forward + [("backward", u) for u in reversed(range(units))],
            mistakes={
                "backward begins with the last unit.": forward + [("backward", u) for u in range(units)]
            },
        )
        most = _play(report, events, computed, ahead)
        report.at_most(
            "units whole at once",
            most,
            min(ahead + 1, units),
            likely="gather just what is needed now or next, and free what is not needed for longest.",
        )
        report.at_most(
            "gathers",
            sum(kind == "gather" for kind, _ in events),
            max(units, 2 * units - ahead - 1),
            likely="what backward needs first was used last in forward: do not free it in between.",
        )


def _play(report: Report, events: list[Event], computed: list[Event], ahead: int) -> int:
    """Follow the events; the most units that were whole at once."""
    whole: set[int] = set()
    most = done = 0
    for kind, unit in events:
        if kind == "gather":
            if unit in whole:
                report.fail(f"unit {unit} is gathered while it is whole", "gather what is not there, only.")
            whole.add(unit)
            most = max(most, len(whole))
        elif kind == "free":
            if unit not in whole:
                report.fail(f"unit {unit} is freed, and was not whole", "each gather has one free.")
            whole.remove(unit)
        elif kind in ("forward", "backward"):
            if unit not in whole:
                report.fail(f"{kind} {unit} runs on a shard", "gather a unit before it computes.")
            late = [u for _, u in computed[done : done + ahead + 1] if u not in whole]
            if late:
                report.fail(
                    f"when {kind} {unit} begins, unit {late[0]} has not been gathered",
                    f"in backward the next unit is the one below: {unit - 1}."
                    if kind == "backward"
                    else "a gather issued after a computation has begun cannot hide behind it.",
                )
            done += 1
        else:
            report.fail(f"an event is called {kind!r}", "gather, forward, backward and free are known.")
    left = ", ".join(map(str, sorted(whole)))
    report.true(
        not whole,
        "every computation finds its unit whole, and the next ones on their way; none is left whole",
        f"after the step these units are still whole: {left}",
        "backward is the last use of a unit: free it then.",
    )
    return most


# blocks, ranks, units gathered ahead, and the budget in blocks
CASES = [(12, 4, 1, 8.0), (12, 4, 2, 7.0), (24, 8, 0, 9.5), (5, 2, 1, 8.5), (6, 3, 1, 1.5)]


@check
def check_07_5(report: Report, blocks_per_unit: Callable[..., int]) -> None:
    block, root = 1000, 500
    for blocks, ranks, ahead, room in CASES:
        budget = int(room * block)
        report.case(f"{blocks} blocks, {ranks} ranks, {ahead} ahead, room for {budget:,}")
        shape = {"blocks": blocks, "block": block, "root": root, "ranks": ranks, "ahead": ahead}
        want = _best(budget, **shape)
        got = blocks_per_unit(blocks, block, root, ranks, ahead, budget)
        if not isinstance(got, int) or not 0 <= got <= blocks:
            report.fail(f"the result is {got!r}", f"a whole number from 0 to {blocks} is wanted.")
        if not want:
            report.equal("no unit is small enough", got, 0, likely="0 says that not even one block fits.")
            continue
        if not got:
            report.fail(
                "0 blocks", f"units of {want} take {_peak(want, **shape):,.0f} at the peak: they fit."
            )
        peak = _peak(got, **shape)
        hints = {
            _best(budget, **shape | {"ahead": 0}): "the units gathered ahead are whole too.",
            _best(budget, **shape | {"ranks": 10**9}): "the shards are there too, all the time.",
            _best(budget, **shape | {"root": 0}): "the root is whole too, and has a shard besides.",
        }
        report.true(
            peak <= budget,
            "what the units take at the peak fits",
            f"units of {got} blocks take {peak:,.0f} at the peak, and there is room for {budget:,}",
            hints.get(got),
        )
        report.at_most(
            "units",
            -(-blocks // got),
            -(-blocks // want),
            likely="fewer, larger units make fewer collectives; the last unit may be smaller.",
        )


def _peak(size: int, blocks: int, block: int, root: int, ranks: int, ahead: int) -> float:
    units = [block * min(size, blocks - first) for first in range(0, blocks, size)]
    return unsharded_history(units, ranks=ranks, root_bytes=root, prefetch=ahead).peak.bytes


def _best(budget: int, **shape: int) -> int:
    """The largest number of blocks in a unit that fits; 0 if none does."""
    return max((n for n in range(1, shape["blocks"] + 1) if _peak(n, **shape) <= budget), default=0)
