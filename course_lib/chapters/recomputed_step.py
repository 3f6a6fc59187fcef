"""Chapter 08's drawing of a step: what is kept for backward, and what blocks that run again bring back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from simulator.inputs.checks import at_least, not_negative
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare, human, ticks_in

KEPT, BACK = "#bbbbbb", "#1b3a5c"  # as in the puzzle: what is kept, and a block that runs again whole


class Step(NamedTuple):
    """Bytes that are alive at some moments of a step; between two moments they change evenly. A block's forward
    takes 1, and its backward 2."""

    times: list[float]
    kept: list[float]
    back: list[float]  # of a block that has run again
    backward: float  # when it begins

    @property
    def peak(self) -> float:
        return max(map(sum, zip(self.kept, self.back, strict=True)))


def step_of(entry: float, rest: float, blocks: int, again: Collection[int] = (), head: float = 0) -> Step:
    """A step of equal blocks.

    Args:
        entry: bytes of a block's input.
        rest: bytes that its backward needs besides.
        again: the numbers of the blocks that keep their input only, and run again in backward.
        head: bytes that lie outside of the blocks when forward ends, such as the logits.

    Raises:
        ValueError: a number in ``again`` is no block's.
    """
    at_least(1, blocks=blocks)
    not_negative(entry=entry, rest=rest, head=head)
    if strange := sorted(set(again) - set(range(blocks))):
        raise ValueError(f"blocks have the numbers 0 to {blocks - 1}, so {strange[0]} is none")
    times, kept, back = [0.0], [0.0], [0.0]

    def go(time: float, of_kept: float, of_back: float = 0) -> None:
        for row, change in ((times, time), (kept, of_kept), (back, of_back)):
            row.append(row[-1] + change)

    for block in range(blocks):
        go(1, entry if block in again else entry + rest)
    go(0.5, head)
    go(1, -head)
    for block in reversed(range(blocks)):
        if block in again:
            go(1, 0, rest)
            go(2, 0, -rest)
            go(0, -entry)
        else:
            go(2, -entry - rest)
    return Step(times, kept, back, backward=blocks + 0.5)


def plot_steps(
    steps: Sequence[Step],
    titles: Sequence[str],
    told: Sequence[bool] | None = None,
    names: tuple[str, str] | None = None,
    even: bool = False,
) -> Picture:
    """The steps beside each other, to one scale.

    Args:
        steps, titles: one title for each step.
        told: for each step, whether its peak is written down; by default it is.
        names: what is kept and what comes back, in a legend; without, there is none, and both have one colour.
        even: forward is as wide as backward, so that no width tells how long they take. Otherwise widths are FLOPs, and
            a number says how many forwards wide each is.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    told = [True] * len(steps) if told is None else told
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    wide = None if even else [step.times[-1] for step in steps]
    axes = figure.subplots(1, len(steps), sharey=True, squeeze=False, width_ratios=wide)[0]
    top = 1.25 * max(step.peak for step in steps) / 1e9
    alt = []
    for axis, step, title, tell in zip(axes, steps, titles, told, strict=True):
        kept = [x / 1e9 for x in step.kept]
        every = [k + x / 1e9 for k, x in zip(kept, step.back, strict=True)]
        begin, end = (1.0, 2.0) if even else (step.backward, step.times[-1])
        times = [_even(time, step) if even else time for time in step.times]
        axis.fill_between(times, kept, color=KEPT, lw=0, label=names and names[0])
        axis.fill_between(times, kept, every, color=BACK if names else KEPT, lw=0, label=names and names[1])
        axis.axvline(begin, 0, 0.85, color="#777777", linestyle=":", linewidth=1)
        axis.set(xlim=(0, end), ylim=(0, top))
        middles = [begin / 2, (begin + end) / 2]
        widths = ["", ""] if even else [": 1", f": {round(end / begin - 1)}"]
        axis.set_xticks(middles, [f"{p}{w}" for p, w in zip(("forward", "backward"), widths, strict=True)])
        if not even:
            axis.set_xlabel("FLOPs (one forward is 1)", fontsize=TEXT)
        axis.set_title(title, loc="left", fontsize=TITLE)
        bare(axis)
        if tell:
            when = times[every.index(max(every))]
            axis.annotate(
                human(step.peak), (when, max(every)), (0, 3), textcoords="offset points", fontsize=TEXT
            )
        alt.append(f"{title}: {f'the peak is {human(step.peak)}' if tell else 'hardly above the ground'}")
    axes[0].yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes[0].yaxis.set_major_formatter(FuncFormatter(ticks_in("GB")))
    if names:
        axes[-1].legend(loc="upper right", fontsize=TEXT, frameon=False)
        alt.append(f"below {names[0]}, on top {names[1]}")
    return render(figure, f"Memory over a step. {'; '.join(alt)}.")


def _even(time: float, step: Step) -> float:
    """From 0 to 1 in forward, and to 2 in backward."""
    if time <= step.backward:
        return time / step.backward
    return 1 + (time - step.backward) / (step.times[-1] - step.backward)
