"""One step of the pipeline by hand: drawn for any order, and recorded on ranks that share a few cores (chapter 11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.by_hand.pipeline import Pipeline
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline
from course_lib.observe.show.orders import draw_order
from course_lib.observe.show.rows import compute_rows
from course_lib.observe.show.shown import Shown, headed
from course_lib.pipeline.slow_stage import Sleep
from course_lib.runtime import trace
from simulator.ledgers.timeline import Timeline
from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.plots import plot_timeline
from simulator.plots.picture import Picture
from simulator.predict.memory_over_time import peak_saved

Order = Sequence[Sequence[tuple[str, int, int]]]  # for each rank its actions: (kind, stage, microbatch)


class Step(NamedTuple):
    """What all ranks computed when, in milliseconds; this rank's microbatches in flight; the whole gradient's norm."""

    timeline: Timeline
    in_flight: float
    norm: float

    @property
    def length(self) -> float:
        return self.timeline.makespan


class SlowBlock(nn.Module):
    """A linear layer that sleeps in its forward, in its backward for the input, and in that for the weights.

    A sleeping rank needs no core, so that four ranks compute side by side on two.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        self.seconds = 0.0  # of each of the three

    def forward(self, x: Tensor) -> Tensor:
        x = Sleep.apply(x, self.seconds, self.seconds)
        weight = Sleep.apply(self.linear.weight, 0.0, self.seconds)
        return x + F.linear(x, weight, self.linear.bias)


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


def predicted(order: Order, name: str = "") -> Execution:
    """The step in which F, B and W of one microbatch take a rank 1 unit each."""
    schedule = schedule_of(name, order)
    return simulate(schedule, *[1 / schedule.chunks] * 3)


def plot_orders(orders: Mapping[str, Order], kept: bool = True) -> Picture:
    """The predicted timelines of steps, one below the other.

    Args:
        orders: name -> what each rank does.
        kept: each title says, beside the length of the step, its bubble and what is in flight on every rank.
    """
    steps = {name: predicted(order, name) for name, order in orders.items()}
    titles = [f"{name}: {step.makespan:g} units" for name, step in steps.items()]
    if kept:
        held = [", ".join(f"{most:g}" for most in in_flight(order)) for order in orders.values()]
        bubbles = [f"{step.bubble():.1%}" for step in steps.values()]
        titles = [f"{t}, bubble {b}, in flight {h}" for t, b, h in zip(titles, bubbles, held, strict=True)]
    return plot_timeline(*steps.values(), titles=titles, unit="units")


def plot_beginning(order: Order, until: float) -> Picture:
    """What the ranks have done after that many units; the rest is left to the reader's pencil."""
    done = Timeline(span for span in predicted(order).spans if span.end <= until)
    return plot_timeline(done, titles=[f"the first {done.makespan:g} units"], unit="units")


def try_order(
    order: Callable[[int, int], Order],
    p: int = 4,
    m: int = 8,
    *,
    units: float | None = None,
    kept: float | None = None,
) -> Picture | Shown:
    """The timeline of one order; where ranks wait for ever, as far as they come, and who waits for what.

    Args:
        order: ``order(p, m)`` gives for each rank its actions.
        units, kept: a task: so long may the step be, and so many microbatches in flight on each rank.
    """
    try:
        actions = order(p, m)
        picture = plot_orders({order.__name__: actions})
    except (TypeError, ValueError):
        return draw_order(lambda rank, *_: [(kind, i) for kind, _, i in order(p, m)[rank]], p, m)
    if units is None or kept is None:
        return picture
    if len(actions) != p or any(len({i for *_, i in own}) != m for own in actions):
        return headed(f"Not yet: all {m} microbatches must go through all {p} ranks.", picture)
    return headed(_judged(predicted(actions).makespan, max(in_flight(actions)), units, kept), picture)


def _judged(length: float, most: float, units: float, kept: float) -> str:
    if length <= units and most <= kept:
        return f"Solved: {length:g} units, and at most {most:g} in flight on a rank."
    return (
        f"Not yet: {length:g} units ({units:g} wanted), "
        f"at most {most:g} in flight on a rank ({kept:g} allowed)."
    )


def record_steps(orders: Mapping[str, Order], unit: float = 0.03, times: int = 3) -> dict[str, Step]:
    """Run steps of each order on real ranks, and keep the shortest; every rank calls it.

    Args:
        orders: name -> what each rank does.
        unit: seconds that a rank sleeps in each of F, B and W of one microbatch.
        times: steps of each order. They take turns, so that a busy moment spoils no order alone.
    """
    rounds = [{name: _record(order, unit) for name, order in orders.items()} for _ in range(times)]
    return {name: min((found[name] for found in rounds), key=lambda one: one.length) for name in orders}


def _record(order: Order, unit: float) -> Step:
    schedule = schedule_of("", order)
    config = GPTConfig.tiny(num_layers=schedule.stages, hidden_size=32, max_length=8)
    torch.manual_seed(0)
    model = GPT(config)
    model.blocks = nn.ModuleList(SlowBlock(config.hidden_size) for _ in range(schedule.stages))
    tokens = torch.randint(config.vocab_size, (2 * schedule.microbatches, 9))
    batch = [list(part.tensor_split(schedule.microbatches)) for part in (tokens[:, :-1], tokens[:, 1:])]

    def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    pipeline = Pipeline(model, loss_fn, [list(actions) for actions in order])
    pipeline.step(*batch)  # connects the ranks
    model.zero_grad()
    for block in model.modules():
        if isinstance(block, SlowBlock):
            block.seconds = unit / schedule.chunks
    peak = _watch(pipeline, schedule)
    dist.barrier()
    with record_timeline() as log:
        pipeline.step(*batch)
    done = [span._replace(lane="compute") for span in gather_timeline(log).of(lane="action")]
    norm = float(pipeline.gradient_norm())
    return Step(compute_rows(Timeline(done)), peak[0] / schedule.chunks, norm)


def _watch(pipeline: Pipeline, schedule: Schedule) -> list[int]:
    """Mark every action, without the wait for its input, as the simulator names it; counts what is kept at most."""
    receive, forward, backward, peak = pipeline.wait_for, pipeline.forward, pipeline.backward, [0]
    ends: list[Callable[..., None]] = []

    def begin(kind: str, stage: int, i: int) -> None:
        ends.append(trace.begin("action", schedule.span_name(Action(kind, stage, i))))

    def wait_for(kind: str, stage: int, i: int) -> Tensor:
        found = receive(kind, stage, i)
        begin(kind, stage, i)
        return found

    def do_forward(stage: int, i: int) -> None:
        if stage == 0:
            begin("F", stage, i)
        forward(stage, i)
        ends.pop()()
        peak[0] = max(peak[0], len(pipeline.kept))

    def do_backward(kind: str, stage: int, i: int) -> None:
        if kind == "W" or stage == pipeline.last:
            begin(kind, stage, i)
        backward(kind, stage, i)
        ends.pop()()

    pipeline.wait_for, pipeline.forward, pipeline.backward = wait_for, do_forward, do_backward
    return peak


def plot_recorded(
    ran: Sequence[Mapping[str, Step]], orders: Mapping[str, Order], unit: float = 0.03
) -> Picture:
    """For each order what was predicted for actions of ``unit`` seconds, and below it what ranks did.

    Args:
        ran: what ``record_steps`` gave on each rank. Titles say how long a step is, and what was in flight at most.
    """
    drawn: list[Timeline] = []
    titles = []
    for name, order in orders.items():
        schedule = schedule_of(name, order)
        time = 1e3 * unit / schedule.chunks
        split = any(kind == "W" for actions in order for kind, *_ in actions)
        # Tokens have no gradient, so a backward that is cut in two has only a W in stage 0.
        first = [0, 2 * time] if split else [time, time]
        rest = [time] * (schedule.stages - 1)
        drawn.append(simulate(schedule, time, [first[0], *rest], [first[1], *rest]))
        drawn.append(ran[0][name].timeline)
        held = in_flight(order), [steps[name].in_flight for steps in ran]
        for said, timeline, most in zip(("predicted", "measured"), drawn[-2:], held, strict=True):
            kept = ", ".join(f"{each:g}" for each in most)
            titles.append(f"{name}, {said}: {timeline.makespan:,.0f} ms, in flight {kept}")
    said = f"Timelines of {', '.join(orders)} on {len(ran)} ranks: predicted, and below it measured."
    return plot_timeline(*drawn, titles=titles, unit="ms", alt=said)
