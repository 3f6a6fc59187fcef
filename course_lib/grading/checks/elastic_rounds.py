"""The check of 20.1: a rendezvous round as a state machine, held to a reference after every event."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from course_lib.grading.report import Report, check

State = dict[str, Any]
Event = tuple[str, str | None]
NextState = Callable[[State, Event, float, int, int, float], State]

KEYS = ("number", "phase", "members", "waiting", "deadline")
START: State = {"number": 1, "phase": "open", "members": [], "waiting": [], "deadline": None}

DEADLINE = "If the phase is `last call` and `now` is at least `deadline`, the round is sealed."
ALREADY = (
    "An agent that is already in `members` or `waiting` may send `join` again, and an unknown one may leave."
)
JOIN_OPEN = "its name goes to the end of `members`. The phase is then chosen by rule 5."
JOIN_SEALED = "a new round opens with the same members and the newcomer behind them."
JOIN_FULL = "If it has `largest` members, the newcomer goes to the end of `waiting`."
LEAVE_WAITING = "If it is in `waiting`, its name is taken out, and nothing else changes."
LEAVE_OPEN = "its name is taken out of `members`. The phase is then chosen by rule 5."
LEAVE_SEALED = (
    "a new round opens with the members that are left. Agents from the front of `waiting` come behind them"
)
PHASE = "With `largest` members the phase is `sealed`, and with fewer than `smallest` it is `open`."
RUNNING = "A last call that is already running keeps its deadline."
KEPT = "The given `state` stays as it is."
FORM = "Return the state after the event, a dict with five entries"
TARGET = "Where an event changes nothing, `next_state` returns the very same `state`, and nothing is written."


class Case(NamedTuple):
    """Events with their times: ``"+a"`` joins, ``"-a"`` leaves, ``""`` only tells the time."""

    name: str
    smallest: int
    largest: int
    wait: float
    events: Sequence[tuple[float, str]]


def _cases(seed: int) -> list[Case]:
    """All but the last are fixed, and any two mistakes below differ in one of these."""
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
        Case("60 events of five agents", 2, 4, 6, _drawn(random.Random(seed), 60)),
    ]  # fmt: skip


def _drawn(draw: random.Random, count: int) -> list[tuple[float, str]]:
    now, events = 0, []
    for _ in range(count):
        now += draw.randint(1, 4)
        events.append((now, draw.choice(["+", "+", "+", "-", ""])))
    return [(now, sign + draw.choice("abcde") if sign else "") for now, sign in events]


def _event(text: str) -> Event:
    return {"+": ("join", text[1:]), "-": ("leave", text[1:])}.get(text[:1], ("time", None))


class Trace(NamedTuple):
    states: list[Any]
    writes: int
    problem: str = ""
    task: str = ""


def run(next_state: NextState, case: Case) -> Trace:
    """The state after each event. It ends early where what is returned is not a state."""
    state, states, writes = copy.deepcopy(START), [], 0
    for now, text in case.events:
        before = copy.deepcopy(state)
        after = next_state(state, _event(text), now, case.smallest, case.largest, case.wait)
        if state != before:
            said = f"{_told(now, text)}: the state that was given is changed, from {_brief(before)} to {_brief(state)}"
            return Trace(states, writes, said, KEPT)
        if not isinstance(after, Mapping) or set(after) != set(KEYS):
            said = f"{_told(now, text)}: the result is {after!r:.120}, and a state has the keys {', '.join(KEYS)}"
            return Trace(states, writes, said, FORM)
        writes += after is not state
        state = after
        states.append(_plain(after))
    return Trace(states, writes)


@check
def check_20_1(report: Report, next_state: NextState) -> None:
    for case in _cases(report.seed()):
        with report.case(case.name):
            got, want = run(next_state, case), run(reference, case)
            step = first_difference(got.states, want.states)
            if got.problem and step is None:
                report.fail(got.problem, task=got.task)
            if step is not None:
                report.true(
                    False,
                    "",
                    _story(case, step, got.states[step], want.states[step]),
                    got=got.states,
                    mistakes=MISTAKES,
                    given=(case,),
                    task=_violated(case, step, got.states[step], want.states),
                )
            fact = "the state after every event"
            report.equal(fact, got.states, want.states, mistakes=MISTAKES, given=(case,))
            more = max(0, got.writes - want.writes)
            report.at_most(
                "states written beyond those that change", more, 0, mistakes=SLOW, given=(case,), task=TARGET
            )


def first_difference(got: Sequence[Any], want: Sequence[Any]) -> int | None:
    """The first place where two lists differ, as far as both go."""
    return next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), None)


def _plain(state: Mapping[str, Any]) -> State:
    lists = {key: list(state[key]) for key in ("members", "waiting")}
    return {**{key: state[key] for key in KEYS}, **lists}


def _told(now: float, text: str) -> str:
    kind, name = _event(text)
    return f"at {now} s, event ({kind!r}, {name!r})"


def _brief(state: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {state[key]!r}" for key in KEYS if state[key] not in ([], None))


def _story(case: Case, step: int, got: State, want: State) -> str:
    differ = [key for key in KEYS if got[key] != want[key]]
    told = "; ".join(f"`{key}` is then {got[key]!r:.60}, expected {want[key]!r}" for key in differ[:3])
    settings = f"(smallest {case.smallest}, largest {case.largest}, wait {case.wait} s)"
    return f"{_told(*case.events[step])}: {told}\n{settings}"


def _violated(case: Case, step: int, got: State, states: Sequence[State]) -> str:
    now, text = case.events[step]
    before, want = states[step - 1] if step else START, states[step]
    kind, name = _event(text)
    due = before["phase"] == "last call" and now >= before["deadline"]
    known = name in before["members"] or name in before["waiting"]
    if kind == "time" or (due and got["deadline"] == before["deadline"]):
        return DEADLINE
    if known == (kind == "join"):
        return ALREADY
    if got["phase"] != want["phase"] and got["members"] == want["members"]:
        return PHASE
    if before["phase"] == want["phase"] == "last call" and got["deadline"] != want["deadline"]:
        return RUNNING
    if kind == "leave" and name in before["waiting"]:
        return LEAVE_WAITING
    sealed = due or before["phase"] == "sealed"
    if kind == "join":
        full = len(before["members"]) >= case.largest
        return (JOIN_FULL if full else JOIN_SEALED) if sealed else JOIN_OPEN
    return LEAVE_SEALED if sealed else LEAVE_OPEN


# ---- the reference, and likely mistakes as variations of it -----------------------------------------------------


def reference(
    state: State, event: Event, now: float, smallest: int, largest: int, wait: float, mistake: str = ""
) -> State:
    new = copy.deepcopy(state)
    _advance(new, event, now, smallest, largest, wait, mistake)
    return state if new == state and mistake != "always writes" else new


def _advance(
    new: State, event: Event, now: float, smallest: int, largest: int, wait: float, mistake: str
) -> None:
    kind, name = event
    due = new["phase"] == "last call" and (
        now > new["deadline"] if mistake == "after the deadline" else now >= new["deadline"]
    )
    if due and not (mistake == "only the clock" and kind != "time"):
        new.update(phase="sealed", deadline=None)
        if mistake == "swallows":
            return
    members, waiting, sealed = new["members"], new["waiting"], new["phase"] == "sealed"
    known = name in members or (name in waiting and mistake != "late twice")
    if kind == "join" and (not known or mistake == "twice"):
        if sealed and (mistake == "always late" or (len(members) >= largest and mistake != "no largest")):
            waiting.append(name)
            return
        members.append(name)
    elif kind == "leave" and name in waiting and mistake != "late stay":
        waiting.remove(name)
        return
    elif kind == "leave" and name in members:
        place = members.index(name) if mistake == "into the gap" else largest
        members.remove(name)
        if sealed and mistake == "leaves quietly":
            return
    else:
        return
    if sealed:
        new["number"] += mistake != "same number" and (mistake, kind) != ("newcomer, same number", "join")
        if kind == "join" and mistake == "newcomer, still sealed":
            return
        new["phase"] = "open"
        while waiting and len(members) < largest and mistake != "late wait on":
            members.insert(place, waiting.pop(-1 if mistake == "last first" else 0))
    _choose_phase(new, now, smallest, largest, wait, mistake, kind)


def _choose_phase(
    new: State, now: float, smallest: int, largest: int, wait: float, mistake: str, kind: str
) -> None:
    count = len(new["members"])
    if count >= largest and mistake != "waits when full":
        new.update(phase="sealed", deadline=new["deadline"] if mistake == "full keeps it" else None)
    elif count >= smallest:
        moved = mistake == "moves at all" or (mistake == "moves the deadline" and kind == "join")
        if (new["phase"] != "last call" or moved) and not (mistake == "takes it again" and new["deadline"]):
            new["deadline"] = now + wait
        new["phase"] = "last call"
        if mistake == "seals at smallest":
            new.update(phase="sealed", deadline=None)
    elif not (mistake == "stays in last call" and new["phase"] == "last call"):
        new.update(phase="open", deadline=new["deadline"] if mistake in KEPT_OPEN else None)


def _by(mistake: str) -> Callable[[Case], list[State]]:
    return lambda case: run(lambda *given: reference(*given, mistake), case).states


def _more_writes(mistake: str) -> Callable[[Case], int]:
    def program(case: Case) -> int:
        return run(lambda *given: reference(*given, mistake), case).writes - run(reference, case).writes

    return program


KEPT_OPEN = ("open keeps it", "takes it again")
MISTAKES: dict[str, Callable[[Case], list[State]]] = {
    "when every agent that joins or leaves moves the deadline": _by("moves at all"),
    "when the deadline stays although the phase is `open` again": _by("open keeps it"),
    "when a new last call takes the deadline of an earlier one": _by("takes it again"),
    "when the deadline stays in a round that is sealed because it is full": _by("full keeps it"),
    "when an agent from `waiting` takes the place of the one that has left": _by("into the gap"),
    "when an agent that is already in `waiting` is put there again": _by("late twice"),
    "when a newcomer in a sealed round leaves its number as it is": _by("newcomer, same number"),
    "when rule 5 does not choose the phase after a newcomer in a sealed round": _by("newcomer, still sealed"),
    "when every agent that joins moves the deadline": _by("moves the deadline"),
    "when a round is sealed as soon as it has `smallest` members": _by("seals at smallest"),
    "when a round with `largest` members still waits for the deadline": _by("waits when full"),
    "when only an event of kind time can seal a round": _by("only the clock"),
    "when the round is sealed after the deadline, and not at it": _by("after the deadline"),
    "when an event that seals the round is not handled any further": _by("swallows"),
    "when the last call goes on although fewer than `smallest` members are left": _by("stays in last call"),
    "when no new round opens after a member of a sealed round has left": _by("leaves quietly"),
    "when everyone who joins a sealed round has to wait in `waiting`": _by("always late"),
    "when a sealed round takes in newcomers beyond `largest`": _by("no largest"),
    "when agents in `waiting` are not taken into the new round": _by("late wait on"),
    "when the last agent of `waiting` is taken into the new round first": _by("last first"),
    "when an agent stays in `waiting` after it has left": _by("late stay"),
    "when an agent that joins twice is listed twice": _by("twice"),
    "when a new round keeps the number of the old one": _by("same number"),
}
SLOW: dict[str, Callable[[Case], int]] = {
    "when every event makes a new state, whether or not it changes anything": _more_writes("always writes"),
}
