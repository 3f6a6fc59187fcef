"""Chapter 20's game: agents A to D form rounds second by second, and the reader is A."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_lib.elastic.rendezvous import Limits, Rendezvous
from course_lib.elastic.rounds import OPEN, SEALED, Round
from course_lib.elastic.stores import DictStore
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

HOSTS = ["A", "B", "C", "D"]
COLOURS = {"member": "#f3e3a1", "trains": "#8fb99f", "waits": "#dddddd"}


@dataclass
class Second:
    """The record after all have looked once, and what each agent that lives changed in it."""

    second: int
    record: Round
    alive: list[str]
    did: dict[str, str]


def play(
    alive: Mapping[str, Sequence[int]], seconds: int, beat_timeout: float = 5, last_call: float = 10
) -> list[Second]:
    """Each second the agents that are alive look once, in the order of their names.

    Args:
        alive: agent -> the seconds in which it looks.
        beat_timeout: who gives no sign of life for more than so many seconds is called dead.
        last_call: seconds that a round with at least 2 agents waits for more.
    """
    now, stores = [0.0], {host: DictStore() for host in HOSTS}
    limits = Limits(2, 4, last_call=last_call, beat=1, beat_timeout=beat_timeout, give_up=1000)
    agents = {h: Rendezvous(h, HOSTS, stores.__getitem__, limits, lambda: now[0]) for h in HOSTS}
    record, played = Round(), []
    for second in range(seconds + 1):
        now[0], did = second, {}
        there = [h for h in HOSTS if second in alive.get(h, ())]
        for host in there:
            before, record = record, agents[host].poll()
            did[host] = _change(before, record, host)
        played.append(Second(second, record, there, did))
    return played


def _change(before: Round, after: Round, me: str) -> str:
    if after.number > before.number:
        lost = [m for m in before.members if m not in after.expected]
        return f"call {lost[0]} dead and open round {after.number}" if lost else f"open round {after.number}"
    if before.phase == OPEN and after.phase == SEALED:
        return "seal the round"
    if me in after.members and me not in before.members:
        return "join"
    if me in after.waiting and me not in before.waiting:
        return "wait for the next round"
    return "change nothing"


def plot_play(played: Sequence[Second], start: int = 0) -> Picture:
    """A row for each agent over the seconds: has joined, trains, or waits; what they did is written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axis, told, names = figure.subplots(), [], {"member": "has joined", "trains": "trains", "waits": "waits"}
    for one in played[start:]:
        for row, host in enumerate(HOSTS):
            if host in one.record.members and host in one.alive:
                state = "trains" if one.record.phase == SEALED else "member"
            elif host in one.alive:
                state = "waits"
            else:
                continue
            axis.barh(row, 1, left=one.second, height=0.6, color=COLOURS[state], label=names.pop(state, None))
            if (did := one.did.get(host, "")) not in (
                "",
                "change nothing",
                "join",
                "wait for the next round",
            ):
                near_end = one.second - start > 0.6 * (played[-1].second - start)
                axis.plot(one.second, row, "|", color="#b03a2e", ms=20, mew=2)
                axis.annotate(
                    f"{host}: {did}",
                    (one.second, row - 0.42),
                    ha="right" if near_end else "left",
                    fontsize=TEXT,
                    color="#b03a2e",
                )
            if did and did != "change nothing":
                told.append(f"second {one.second}, {host}: {did}")
    axis.set_yticks(range(4), [f"agent {host}" for host in HOSTS], fontsize=TEXT)
    axis.set(ylim=(3.5, -0.9), xlim=(start, played[-1].second + 1))
    axis.set_xlabel("seconds", loc="right", fontsize=TEXT)
    plain_axes(axis)
    figure.legend(loc="outside upper left", fontsize=TEXT, frameon=False, ncols=3)
    return render(figure, "; ".join(told) + ".")
