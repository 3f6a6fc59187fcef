"""07.2: in which order units are gathered and freed in a step. It needs no ranks."""

from course_checks.on_ranks import count

from course_lib.grading.judge import Fact, record

TARGET = "never more than `ahead + 1` units at once, and as few gathers as that allows."
FACTS = {
    "order": Fact("the computations", "forward 0, 1, 2 … and then backward … 2, 1, 0."),
    "kinds": Fact("events", "Write all its events in order, as a list of pairs:"),
    "there": Fact("units", "A unit that is there is not gathered, and only what is there is freed."),
    "ready": Fact("units", "When a computation begins, its unit must have been gathered."),
    "ahead": Fact("units", "The units of the next `ahead` computations must have been gathered too"),
    "left": Fact("units", "At the end no unit is left."),
    "most": Fact("units unsharded at once beyond ahead + 1", TARGET, most=0),
    "gathers": Fact("gathers beyond the fewest", TARGET, most=0, beyond=True),
}

Case = record("units ahead", lambda c: f"{count(c.units, 'unit')}, {c.ahead} ahead")
CASES = [Case(*case) for case in [(4, 1), (6, 2), (3, 0), (5, 1), (2, 3), (3, 2), (1, 1), (1, 0)]]


def observe(step_events, case: Case) -> dict:
    units, ahead, _ = case
    events = [(kind, int(unit)) for kind, unit in step_events(units, ahead)]
    return play(events, units, ahead) | {"trace": events}


def play(events: list[tuple[str, int]], units: int, ahead: int) -> dict:
    """Follow the events to the first that is wrong."""
    order = [("forward", u) for u in range(units)] + [("backward", u) for u in reversed(range(units))]
    computed = [event for event in events if event[0] in ("forward", "backward")]
    if computed != order:
        return {"order": f"the computations are {computed}, and the step has {order}"}
    here: set[int] = set()
    most = done = 0
    for kind, unit in events:
        if kind == "gather":
            if unit in here:
                return {"there": f"unit {unit} is gathered while it is there"}
            here.add(unit)
            most = max(most, len(here))
        elif kind == "free":
            if unit not in here:
                return {"there": f"unit {unit} is freed, and was not there"}
            here.remove(unit)
        elif kind in ("forward", "backward"):
            if unit not in here:
                return {"ready": f"{kind} {unit} begins, and its unit has not been gathered"}
            if late := [u for _, u in order[done : done + ahead + 1] if u not in here]:
                return {"ahead": f"when {kind} {unit} begins, unit {late[0]} has not been gathered"}
            done += 1
        else:
            return {"kinds": f"an event is called {kind!r}"}
    if here:
        return {"left": f"units left at the end of the step: {', '.join(map(str, sorted(here)))}"}
    return {"most": max(0, most - ahead - 1), "gathers": sum(kind == "gather" for kind, _ in events)}
