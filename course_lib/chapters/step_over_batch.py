"""The drawing of a data-parallel step over the batch of a GPU: communication sets its time, then computation does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.inputs.checks import at_least, positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

# Told apart by lightness and by the shape of the line as well. The step is drawn wide, below the two sums.
LOOKS = {
    "step, with overlap": ("#9cc9ee", 8.0, "-"),
    "forward + all-reduce": ("#cc6a26", 1.8, "--"),
    "forward + backward": ("#143f70", 1.8, "-"),
}


def plot_step_over_batch(
    samples: Sequence[int],
    step: Callable[[int], float],
    communication: Callable[[int], float],
    computation: Callable[[int], float],
    crossing: float,
    what: str = "samples",
) -> Picture:
    """Seconds of a data-parallel step over the samples of one GPU, and of two sums; it follows the larger one.

    Args:
        samples: the batches of a GPU to draw, smallest first.
        step: seconds of a step in which the all-reduce overlaps with backward.
        communication: seconds of forward and the all-reduce.
        computation: seconds of forward and backward.
        crossing: samples for which both sums are equal; a line marks it.
        what: the word for samples, such as ``"tokens"``.

    Raises:
        ValueError: fewer than two batches, or they do not grow.
    """
    from matplotlib.figure import Figure

    positive(crossing=crossing)
    for count in samples:
        at_least(1, samples=count)
    if len(samples) < 2 or sorted(set(samples)) != list(samples):
        raise ValueError(f"samples must be at least two growing numbers, not {list(samples)}")
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axis = figure.subplots()
    for (name, look), seconds in zip(LOOKS.items(), (step, communication, computation), strict=True):
        colour, width, stroke = look
        values = [1e3 * seconds(count) for count in samples]
        axis.plot(samples, values, stroke, color=colour, linewidth=width, label=name)
    late = samples[round(0.87 * (len(samples) - 1))]
    ends = [(late, 1e3 * seconds(late)) for seconds in (step, computation)]
    axis.annotate("", *ends, arrowprops={"arrowstyle": "<->"})
    axis.annotate(
        "the last message", ends[0], (-16, 7), textcoords="offset points", ha="right", fontsize=TEXT
    )
    axis.axvline(crossing, color="#8a8a8a", linewidth=1)
    for side, text, x in (
        ("right", "communication sets the pace", -8),
        ("left", "computation sets the pace", 8),
    ):
        axis.annotate(
            text,
            (crossing, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(x, 2),
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontsize=TEXT,
        )
    axis.set_xlim(0, samples[-1])
    axis.set_ylim(0)
    axis.set_xlabel(f"{what} on each GPU", fontsize=TEXT, loc="right")
    axis.set_ylabel("time, ms", fontsize=TEXT)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    plain_axes(axis)
    axis.legend(frameon=False, fontsize=TEXT, loc="lower right")
    return render(
        figure,
        f"Time of a step over the {what} on each GPU: it follows the larger of "
        f"forward with all-reduce and forward with backward, which cross at {crossing:,.0f}.",
    )
