"""One step of ZeRO over numbers: four ranks, four weights, and the two lines that the learner writes (chapter 06)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.by_hand import zero
from course_lib.chapters.refused import Refused, refused_on_ranks
from course_lib.chapters.zero_step import draw_halves
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import launch
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

WEIGHTS, GRADIENT, TIMES = [10.0, 20.0, 30.0, 40.0], [2.0, 4.0, 6.0, 8.0], [1, 2, 3, 6]  # of ranks 0 to 3
OTHER = [
    5,
    1,
    2,
    8,
]  # TIMES of a second step, which is not drawn: lines that know the first one's result miss it
NEW, OLD, WRONG = "#bcdcc8", "#eeeeee", "#f4b6a6"
DDP = 6  # numbers that a rank sends in an all-reduce of four


def reduce_scatter(output: Tensor, input: Tensor) -> None:
    _check("reduce_scatter", output, input, 1 / 4)
    zero.reduce_scatter(output, input)


def all_gather(output: Tensor, input: Tensor) -> None:
    _check("all_gather", output, input, 4)
    zero.all_gather(output, input)


def _check(name: str, output: Tensor, given: Tensor, times: float) -> None:
    """Gloo dies of a wrong size."""
    out, into = output.numel(), given.numel()
    if out != times * into:
        wanted = (
            "output of 1 number and an input of 4" if times < 1 else "output of 4 numbers and an input of 1"
        )
        swapped = ": swap them" if into == times * out else ""
        raise Refused(f"{name}(output, input) takes an {wanted}; here they have {out} and {into}{swapped}.")


class Seen(NamedTuple):
    """Of one rank: its gradient, its part of the mean, the weights after its update and at the end.

    Args:
        sent: numbers that it sends in line A and in line B.
    """

    gradient: list[float]
    mean: float
    updated: list[float]
    weights: list[float]
    sent: tuple[float, float]


def step_on_rank(
    before_update: Callable[..., object], after_update: Callable[..., object], times: Sequence[int]
) -> Seen:
    """SGD with a learning rate of 1 on this rank's weight; the two functions may send. Every rank calls it."""
    rank = dist.get_rank()
    weights, gradient = torch.tensor(WEIGHTS), torch.tensor(GRADIENT) * times[rank]
    own, mean = gradient.tolist(), torch.zeros(1)
    shard = weights[rank : rank + 1]  # a view
    with record_traffic() as log:
        before_update(mean, gradient, rank)
        first = log.traffic.sent
        shard -= mean
        updated = weights.tolist()
        after_update(weights, shard)
    return Seen(own, float(mean), updated, weights.tolist(), (first / 4, (log.traffic.sent - first) / 4))


def steps_on_rank(before_update: Callable[..., object], after_update: Callable[..., object]) -> list[Seen]:
    return [step_on_rank(before_update, after_update, times) for times in (TIMES, OTHER)]


def right_mean(times: Sequence[int] = TIMES) -> Tensor:
    return torch.tensor(GRADIENT) * (sum(times) / len(times))


def right_weights(times: Sequence[int] = TIMES) -> list[float]:
    return (torch.tensor(WEIGHTS) - right_mean(times)).tolist()


def plot_step(before_update: Callable[..., object], after_update: Callable[..., object]) -> Picture:
    """Run the step on four ranks and draw what each holds: gradients, their mean, the update, the weights.

    Args:
        before_update: called with (mean, gradient, rank); should fill ``mean``, a single number.
        after_update: called with (weights, shard); should make all weights new on every rank.

    Raises:
        Refused: an output or an input has a wrong size.
    """
    from matplotlib.figure import Figure

    with refused_on_ranks():
        seen, others = zip(*launch(steps_on_rank, 4, args=(before_update, after_update)), strict=True)
    mean, new = right_mean().tolist(), right_weights()
    own = [[one.mean if i == rank else None for i in range(4)] for rank, one in enumerate(seen)]
    panels = {
        "gradients": [one.gradient for one in seen],
        "after line A:\nmean gradients": own,
        "after the update:\nweights": [one.updated for one in seen],
        "after line B:\nweights": [one.weights for one in seen],
    }
    figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
    grid = figure.add_gridspec(2, 4, height_ratios=[1.7, 1])
    for place, (title, rows) in enumerate(panels.items()):
        axis = figure.add_subplot(grid[0, place])
        wanted = [OLD] * 4 if place == 0 else mean if place == 1 else new
        _draw(axis, rows, wanted, last=place == 3)
        axis.set_title(title, fontsize=TITLE)
        axis.set_yticks(range(4), [f"rank {rank}" for rank in range(4)] if not place else [], fontsize=TEXT)
    right, again = (
        sum(one.weights == wanted for one in some)
        for some, wanted in ((seen, new), (others, right_weights(OTHER)))
    )
    sent = max((one.sent for one in seen), key=sum)
    differs = "" if again == right else f", with other gradients on {again}"
    more = f", {sum(sent) - DDP:g} too many" if sum(sent) > DDP else ""
    said = f"right weights on {right} of 4 ranks{differs}; a rank sends {sum(sent):g} numbers, with DDP {DDP}{more}"
    lines = [(f"line {name}: {n:g} numbers", n / 3) for name, n in zip("AB", sent, strict=True) if n]
    half = ("3 numbers", 1)
    draw_halves(figure.add_subplot(grid[1, :]), {"DDP": [half, half], "stage 1": lines}, most=DDP / 3)
    figure.supxlabel(f"green: right; red: wrong\n{said}", fontsize=TITLE)
    told = "; ".join(
        f"{title.replace(chr(10), ' ')} {', '.join(map(_row, rows))}" for title, rows in panels.items()
    )
    return render(figure, f"{said}. On ranks 0 to 3: {told}.")


def _draw(axis, rows: Sequence[Sequence[float | None]], wanted: Sequence, last: bool) -> None:
    """Green: right. Red: wrong, in the last panel also what is still old."""
    from matplotlib.patches import Rectangle

    for rank, row in enumerate(rows):
        for i, number in enumerate(row):
            colour = "#ffffff" if number is None else OLD
            if number is not None and wanted[i] != OLD:
                waits = number == WEIGHTS[i] and not last
                colour = NEW if abs(number - wanted[i]) < 1e-4 else OLD if waits else WRONG
            corner = i - 0.46, rank - 0.42
            axis.add_patch(Rectangle(corner, 0.92, 0.84, facecolor=colour, edgecolor="#999999", lw=0.8))
            if number is not None:
                axis.text(i, rank, f"{number:.3g}", ha="center", va="center_baseline", fontsize=TEXT)
    axis.set(xlim=(-0.6, 3.6), ylim=(3.6, -0.6), xticks=[])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def _row(row: Sequence[float | None]) -> str:
    return " ".join("–" if number is None else f"{number:.3g}" for number in row)
