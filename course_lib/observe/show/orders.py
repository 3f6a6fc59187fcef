"""A learner's own pipeline order, drawn: as far as its ranks come, and why they come no further."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from re import sub

from course_lib.observe.show.shown import Shown
from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.engine import explain_deadlock, simulate
from simulator.pipeline.execution import inputs_of
from simulator.plots import plot_timeline
from simulator.plots.picture import Picture

Order = Callable[[int, int, int], Sequence[tuple[str, int]]]


def schedule_of(order: Order, ranks: int, microbatches: int) -> Schedule:
    """The schedule that a program makes, one rank after the other.

    Args:
        order: ``order(rank, ranks, microbatches)`` gives the pairs of one rank: ``("F", 0)`` is the forward of
            microbatch 0, ``("B", 0)`` its backward, and ``("W", 0)`` the backward for the weights. Where no rank
            has a ``"W"``, a ``"B"`` is the whole backward, which may be called ``"BW"``, too.

    Raises:
        ValueError: there is no such kind or microbatch.
    """
    orders = [list(order(rank, ranks, microbatches)) for rank in range(ranks)]
    split = any(kind == "W" for pairs in orders for kind, _ in pairs)
    names = {"F": "F", "B": "B" if split else "BW", "W": "W"}
    actions = tuple(
        tuple(Action(names.get(kind, kind), rank, i) for kind, i in pairs)
        for rank, pairs in enumerate(orders)
    )
    return Schedule("your order", ranks, microbatches, 1, actions)


def draw_order(order: Order, ranks: int, microbatches: int) -> Picture | Shown:
    """The timeline of a learner's order, in which F, B and W take one unit of time each, and a whole backward two.

    Where ranks wait for ever, the picture ends where they do, and the sentences below it say who waits for what.
    What keeps the order from being drawn is shown as a sentence, and never raised.
    """
    try:
        schedule = schedule_of(order, ranks, microbatches)
    except NotImplementedError:
        return _says("The order is not written yet; run this cell again when it is.")
    except TypeError as error:
        return _says(f"Nothing to draw: {error}. Perhaps a number is missing, or a pair such as ('F', 0).")
    except Exception as error:
        return _says(f"Nothing to draw. {type(error).__name__}: {error}")
    done = _done(schedule)
    begun = replace(
        schedule, actions=tuple(actions[:n] for n, actions in zip(done, schedule.actions, strict=True))
    )
    execution = simulate(begun) if any(done) else None
    if done == list(map(len, schedule.actions)) and execution is not None:
        title = f"your order: {execution.makespan:g} units of time"
        return plot_timeline(execution, titles=[title], unit="units")
    kinds = {kind for rank in range(ranks) for kind, _ in order(rank, ranks, microbatches)}
    whole = "BW" if "BW" in kinds else "B"  # as the learner calls it
    said = explain_deadlock(schedule, done, whole).partition(": ")[2]
    sentences = sub(r" of stage \d+", "", said).split("; ")  # a rank has one stage, so its number says it
    if execution is None:
        return _says(*sentences)
    picture = plot_timeline(execution, titles=["your order, until every rank waits"], unit="units")
    return _says(*sentences, picture=picture)


def _says(*sentences: str, picture: Picture | None = None) -> Shown:
    html = "".join(f"<div>{escape(sentence)}</div>" for sentence in sentences)
    text = "\n".join(sentences)
    if picture is None:
        return Shown(text, html)
    return Shown(f"{picture!r}\n{text}", picture._repr_mimebundle_()["text/html"] + html)


def _done(schedule: Schedule) -> list[int]:
    """How many of its actions each rank can do before all of them wait."""
    done, outputs = [0] * schedule.ranks, set()
    moving = True
    while moving:
        moving = False
        for rank, actions in enumerate(schedule.actions):
            while done[rank] < len(actions):
                action = actions[done[rank]]
                if not all(output in outputs for output in inputs_of(schedule, action)):
                    break
                outputs.add((action.kind[0], action.stage, action.microbatch))
                done[rank] += 1
                moving = True
    return done
