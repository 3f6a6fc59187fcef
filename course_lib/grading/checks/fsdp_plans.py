"""The check of 07.2: in which order units are gathered and freed in a step. It needs no ranks."""

from __future__ import annotations

from collections.abc import Callable

from course_lib.grading.checks.fsdp_mistakes import EVENTS, GATHERED_LATE, PLANNED_APART, WASTEFUL, Event
from course_lib.grading.report import Report, check

FREED_LATE = "when a unit is freed only after the next one has been gathered"
CASES = [(4, 1), (6, 2), (3, 0), (5, 1), (2, 3), (3, 2), (1, 1), (1, 0)]


@check
def check_07_2(report: Report, step_events: Callable[[int, int], list[Event]]) -> None:
    for units, ahead in CASES:
        with report.case(f"{units} unit{'s' * (units > 1)}, {ahead} ahead"):
            events = [(kind, int(unit)) for kind, unit in step_events(units, ahead)]
            computed = [event for event in events if event[0] in ("forward", "backward")]
            order = [("forward", u) for u in range(units)] + [("backward", u) for u in reversed(range(units))]
            named = any(program(units, ahead) == events for program in EVENTS.values())
            likely = {} if named or computed != order else _not_ahead(events, computed, ahead)
            judge = {"got": events, "mistakes": EVENTS | likely, "given": (units, ahead)}
            report.true(
                computed == order,
                "forward in order, backward in the opposite one",
                f"the computations are {computed}, and the step has {order}",
                task="forward 0, 1, 2 … and then backward … 2, 1, 0",
                **judge,
            )
            problem, task, most = _play(events, computed, ahead)
            fact = "every computation has its unit, and the next ones are on their way; no unit is left over"
            report.true(not problem, fact, problem, task=task, **judge)
            found = [text for text, slow in WASTEFUL.items() if slow(units, ahead) == events]
            room = min(ahead + 1, units)
            if not found and most > room >= _play(_freed_at_once(events), computed, ahead)[2]:
                found = [FREED_LATE]
            target = "never more than `ahead + 1` units at once, and as few gathers as that allows"
            likely = _those(found, [*WASTEFUL, FREED_LATE], most)
            report.at_most("units unsharded at once", most, room, mistakes=likely, task=target)
            gathers = sum(kind == "gather" for kind, _ in events)
            likely = _those(found, [*WASTEFUL, FREED_LATE], gathers)
            report.at_most(
                "gathers", gathers, max(units, 2 * units - ahead - 1), mistakes=likely, task=target
            )


def _those(found: list[str], known: list[str], got: int) -> dict[str, int]:
    """What each known mistake gives: what the answer gave, or something else, which speaks against it elsewhere."""
    return {text: got if text in found else -1 for text in known}


def _not_ahead(events: list[Event], computed: list[Event], ahead: int) -> dict[str, list[Event]]:
    """The mistake of an answer whose events would be right for each phase alone, or with fewer units ahead."""
    units, other = len(computed) // 2, {PLANNED_APART: [], GATHERED_LATE: []}
    if not _play(events, computed, ahead, apart=True)[0]:
        begun = events[: events.index(("forward", units - 1))]
        nothing_for_backward = sum(kind == "gather" for kind, _ in begun) == units
        return other | ({PLANNED_APART: events} if nothing_for_backward else {})
    if not _play(_gathered_before(events), computed, ahead)[0]:
        return other | {GATHERED_LATE: events}
    right_for = [k for k in range(ahead) if not _play(events, computed, k)[0]]
    if not right_for:
        return other
    look = right_for[-1]
    return other | {f"when the gathers are {look} unit{'s' * (look != 1)} ahead, and not {ahead}": events}


def _gathered_before(events: list[Event]) -> list[Event]:
    """The same events, but gathers that come directly after a computation come directly before it."""
    result: list[Event] = []
    for event in events:
        late = event[0] == "gather" and result and result[-1][0] in ("forward", "backward")
        result.insert(len(result) - bool(late), event)
    return result


def _freed_at_once(events: list[Event]) -> list[Event]:
    """The same events, but each unit is freed directly after its last computation before that."""
    result: list[Event] = []
    for event in events:
        place = len(result)
        if event[0] == "free":
            uses = [i for i, (_, unit) in enumerate(result) if unit == event[1]]
            place = uses[-1] + 1 if uses else place
        result.insert(place, event)
    return result


def _play(
    events: list[Event], computed: list[Event], ahead: int, apart: bool = False
) -> tuple[str, str, int]:
    """Follow the events: what is wrong (or nothing), the task's sentence about it, the most units at once.

    Args:
        apart: what is needed ahead ends with the phase: in forward, nothing of backward.
    """
    units = len(computed) // 2
    here: set[int] = set()
    most = done = 0
    kinds = "Write all its events in order"
    ready = "When a computation begins, its unit must have been gathered"
    for kind, unit in events:
        if kind == "gather":
            if unit in here:
                return (
                    f"unit {unit} is gathered while it is there",
                    "A unit that is there is not gathered",
                    most,
                )
            here.add(unit)
            most = max(most, len(here))
        elif kind == "free":
            if unit not in here:
                return f"unit {unit} is freed, and was not there", "only what is there is freed", most
            here.remove(unit)
        elif kind in ("forward", "backward"):
            if unit not in here:
                return f"{kind} {unit} begins, and its unit has not been gathered", ready, most
            end = min(done + ahead + 1, units) if apart and done < units else done + ahead + 1
            late = [u for _, u in computed[done:end] if u not in here]
            if late:
                wrong = f"when {kind} {unit} begins, unit {late[0]} has not been gathered"
                return wrong, "The units of the next `ahead` computations must have been gathered too", most
            done += 1
        else:
            return f"an event is called {kind!r}", kinds, most
    if here:
        left = ", ".join(map(str, sorted(here)))
        return f"units left at the end of the step: {left}", "At the end no unit is left", most
    return "", "", most
