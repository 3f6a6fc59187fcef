"""One step of the pipeline by hand, drawn for any order (chapter 11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from course_lib.observe.show.orders import draw_order
from course_lib.observe.show.shown import Shown, headed
from simulator.ledgers.timeline import Timeline
from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.plots import plot_timeline
from simulator.plots.picture import Picture
from simulator.predict.memory_over_time import peak_saved

Order = Sequence[Sequence[tuple[str, int, int]]]  # for each rank its actions: (kind, stage, microbatch)


def schedule_of(name: str, order: Order) -> Schedule:
    """An order of ``course_lib.by_hand.pipeline`` as the simulator's ``Schedule``."""
    stages = {stage for actions in order for _, stage, _ in actions}
    m = 1 + max(i for actions in order for *_, i in actions)
    v_shaped = len(stages) > len(order) and len(stages) - 1 in {stage for _, stage, _ in order[0]}
    actions = tuple(tuple(Action(*action) for action in actions) for actions in order)
    placement = "v" if v_shaped else "loop"
    return Schedule(name, len(order), m, len(stages) // len(order), actions, placement)


def in_flight(order: Order) -> list[float]:
    """For each rank the microbatches in flight at most; one of v stages on a rank counts 1/v.

    A microbatch is in flight on a rank from its forward until its backward has ended, for the weights, too.
    """
    schedule = schedule_of("", order)
    share = [1 / schedule.chunks] * schedule.stages
    return peak_saved(schedule, share, share)


def predicted(order: Order, name: str = "", transfer: float = 0) -> Execution:
    """The step in which F, B and W of one microbatch take a rank 1 unit each, and a message ``transfer``."""
    schedule = schedule_of(name, order)
    return simulate(schedule, *[1 / schedule.chunks] * 3, transfer=transfer)


def plot_orders(orders: Mapping[str, Order], kept: bool = True, transfer: float = 0) -> Picture:
    """The predicted timelines of steps, one below the other.

    Args:
        orders: name -> what each rank does.
        kept: each title says, beside the length of the step, its bubble and what is in flight on every rank.
        transfer: units that a message takes.
    """
    steps = {name: predicted(order, name, transfer) for name, order in orders.items()}
    titles = [f"{name}: {step.makespan:g} units" for name, step in steps.items()]
    if kept:
        held = [", ".join(f"{most:g}" for most in in_flight(order)) for order in orders.values()]
        bubbles = [f"{step.bubble():.1%}" for step in steps.values()]
        titles = [f"{t}, bubble {b}, in flight {h}" for t, b, h in zip(titles, bubbles, held, strict=True)]
    return plot_timeline(*map(_computing, steps.values()), titles=titles, unit="units")


def plot_beginning(orders: Mapping[str, Order], until: float, transfer: float = 0) -> Picture:
    """What the ranks do until then, where the drawing is cut; the rest is left to the reader's pencil."""
    steps = [_computing(predicted(order, name, transfer)).spans for name, order in orders.items()]
    begun = [
        Timeline(span._replace(end=min(span.end, until)) for span in spans if span.start < until)
        for spans in steps
    ]
    return plot_timeline(
        *begun, titles=[f"{name}: the first {until:g} units" for name in orders], unit="units"
    )


def _computing(step: Timeline) -> Timeline:
    """Without messages: in a row for both directions no one sees which way one goes."""
    return Timeline(span for span in step.spans if span.lane == "compute")


def border(order: Order, others: Sequence[Order]) -> float:
    """The tenth of a forward from which on, if a message takes so long, no other order makes a shorter step."""

    def longer(transfer: float) -> float:
        return (
            min(predicted(o, transfer=transfer).makespan for o in others)
            - predicted(order, transfer=transfer).makespan
        )

    return next(t / 10 for t in range(100) if longer(t / 10) > -1e-9)


def try_order(
    order: Callable[[int, int], Order],
    p: int = 4,
    m: int = 8,
    *,
    units: float | None = None,
    kept: float | None = None,
) -> Picture | Shown:
    """The timeline of one order; where ranks wait for ever, who waits for what.

    Args:
        order: ``order(p, m)`` gives for each rank its actions.
        units, kept: a task: so long may the step be, and so many microbatches in flight on each rank.
            The title then does not say which ranks have room: that would give the answer away.
    """
    try:
        actions = order(p, m)
        picture = plot_orders({order.__name__: actions}, kept=kept is None)
    except (TypeError, ValueError):
        return draw_order(lambda rank, *_: [(kind, i) for kind, _, i in order(p, m)[rank]], p, m)
    if units is None or kept is None:
        return picture
    if len(actions) != p or any(len({i for *_, i in own}) != m for own in actions):
        return headed(f"Not yet: all {m} microbatches must go through all {p} ranks.", picture)
    return headed(_judged(predicted(actions), max(in_flight(actions)), units, kept), picture)


def _judged(step: Timeline, most: float, units: float, kept: float) -> str:
    if step.makespan <= units and most <= kept:
        return f"Solved: {step.makespan:g} units, and at most {most:g} in flight on a rank."
    waits = _waits(step) if step.makespan > units else ""
    return (
        f"Not yet: {step.makespan:g} units ({units:g} wanted), "
        f"at most {most:g} in flight on a rank ({kept:g} allowed).{waits}"
    )


def _waits(step: Timeline) -> str:
    """Where a rank waits longest after its first backward; before it every good order waits, too."""
    pairs = [pair for rank in step.ranks for pair in pairwise(step.of(rank, "compute"))]
    late = [(b.start - a.end, -a.end, b) for a, b in pairs if b.name not in ("B0", "BW0") and b.start > a.end]
    if not late:
        return ""
    longest, end, span = max(late)
    whole = not any(each.name.startswith("W") for each in step.of(0, "compute"))  # then B is the learner's BW
    name = span.name.replace("B", "BW") if whole and "BW" not in span.name else span.name
    return f" Rank {span.rank} waits from {-end:g} to {longest - end:g}, before {name}."
