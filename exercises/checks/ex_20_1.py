"""20.1: a rendezvous round as a state machine; the state is looked at after every event."""

import copy
import random
from collections.abc import Mapping

from course_lib.grading.judge import Fact, record

KEYS = ("number", "phase", "members", "waiting", "deadline")
FACTS = {
    "given": Fact("the given state", "The given `state` stays as it is."),
    "form": Fact("the state after an event", "Return the state after the event, a dict with five entries"),
    "states": Fact("the state {}"),
    "writes": Fact("states written though nothing changes", "Where an event changes nothing…", most=0),
}

# Events with their times: ``"+a"`` joins, ``"-a"`` leaves, ``""`` only tells the time
Case = record("name smallest largest wait events")


def cases(seed: int) -> list[Case]:
    four = [(1, "+a"), (2, "+b"), (3, "+c")]
    return [
        Case("too few agents", 3, 4, 10, [(1, "+a"), (2, "+b"), (40, "")]),
        Case("the last call ends", 2, 4, 10, [*four, (11, ""), (12, ""), (13, "")]),
        Case("all agents are there", 2, 3, 10, [*four, (4, "")]),
        Case("an agent joins after the deadline", 2, 4, 10, [(1, "+a"), (2, "+b"), (15, "+c"), (24, ""), (25, "")]),
        Case("a member leaves in the last call", 2, 4, 10,
             [*four, (4, "-a"), (5, "-c"), (20, ""), (21, "+d"), (31, "")]),
        Case("a member of a sealed round leaves", 2, 3, 10, [*four, (50, "-a"), (59, ""), (60, "")]),
        Case("a sealed round falls below the smallest number", 2, 2, 5, [(1, "+a"), (2, "+b"), (9, "-b"), (30, "")]),
        Case("an agent joins a sealed round", 2, 4, 10, [*four, (13, ""), (30, "+d"), (31, "")]),
        Case("two agents come late", 2, 3, 10, [*four, (20, "+d"), (21, "+e"), (22, "-b"), (23, "-d"), (24, "-e")]),
        Case("a late agent leaves", 2, 3, 10, [*four, (20, "+d"), (21, "-d"), (22, "-a"), (23, "")]),
        Case("an agent joins twice", 2, 3, 10,
             [(1, "+a"), (2, "+a"), (3, "+b"), (4, "+b"), (5, "+c"), (6, "+c"), (7, "+d"), (8, "+d")]),
        Case("an unknown agent leaves", 2, 3, 10, [(1, "-x"), (2, "+a"), (3, "-x"), (4, "+b"), (5, "-x"), (20, "-x")]),
        Case("one agent is enough", 1, 2, 5, [(1, "+a"), (6, ""), (7, "-a"), (8, "+b"), (9, "+c")]),
        Case("exactly one number of agents", 2, 2, 5,
             [(1, "+a"), (2, "+b"), (3, "+c"), (4, "-a"), (5, "-b"), (6, "-c")]),
        Case("60 events of five agents", 2, 4, 6, drawn(random.Random(seed), 60)),
    ]  # fmt: skip


def drawn(draw: random.Random, count: int) -> list[tuple[float, str]]:
    now, events = 0, []
    for _ in range(count):
        now += draw.randint(1, 4)
        sign = draw.choice(["+", "+", "+", "-", ""])
        events.append((now, sign + draw.choice("abcde") if sign else ""))
    return events


def observe(next_state, case: Case) -> dict:
    """The state after each event, up to the first that is not one."""
    state = {"number": 1, "phase": "open", "members": [], "waiting": [], "deadline": None}
    found, writes, needed = {}, 0, 0
    for now, text in case.events:
        event = {"+": ("join", text[1:]), "-": ("leave", text[1:])}.get(text[:1], ("time", None))
        told, before = f"after {event} at {now} s", copy.deepcopy(state)
        after = next_state(state, event, now, case.smallest, case.largest, case.wait)
        if state != before:
            return {"given": f"{told}: the state that was given is changed from {before} to {state}"}
        if not isinstance(after, Mapping) or set(after) != set(KEYS):
            said = f"{told}: the result is {after!r:.120}, and a state has the keys {', '.join(KEYS)}"
            return {"form": said}
        writes, needed, state = writes + (after is not state), needed + (after != before), after
        found[told] = {key: list(v) if isinstance(v := after[key], list | tuple) else v for key in KEYS}
    return {"states": found, "writes": writes - needed}
