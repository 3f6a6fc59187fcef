"""Chapter 08's drawing of a step: what is kept for backward, and what blocks that run again bring back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from simulator.inputs.checks import at_least, not_negative
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare, human, ticks_in

KEPT, BACK = "#bbbbbb", "#1b3a5c"  # as in the puzzle: what is kept, and a block that runs again whole
GROUND = "#777777"


class Step(NamedTuple):
    """Bytes that are alive at some moments of a step; between two moments they change evenly. A block's forward
    takes 1, and its backward 2."""

    times: list[float]
    kept: list[float]
    back: list[float]  # of a block that runs, and does not stay
    backward: float  # when it begins

    @property
    def peak(self) -> float:
        return max(map(sum, zip(self.kept, self.back, strict=True)))


def step_of(
    entry: float,
    rest: float,
    blocks: int,
    again: Collection[int] = (),
    head: float = 0,
    second: float = 1,
    passing: float = 0,
) -> Step:
    """A step of equal blocks.

    Args:
        entry: bytes of a block's input.
        rest: bytes that its backward needs besides.
        again: the numbers of the blocks that keep their input only, and run again in backward.
        head: bytes that lie outside of the blocks when forward ends, such as the logits.
        second: how long a block's second run takes, where its forward takes 1.
        passing: bytes that a block that will run again needs for a moment in its first run, and frees.

    Raises:
        ValueError: a number in ``again`` is no block's.
    """
    at_least(1, blocks=blocks)
    not_negative(entry=entry, rest=rest, head=head, passing=passing)
    if strange := sorted(set(again) - set(range(blocks))):
        raise ValueError(f"blocks have the numbers 0 to {blocks - 1}, so {strange[0]} is none")
    times, kept, back = [0.0], [0.0], [0.0]

    def go(time: float, of_kept: float, of_back: float = 0) -> None:
        for row, change in ((times, time), (kept, of_kept), (back, of_back)):
            row.append(row[-1] + change)

    for block in range(blocks):
        if block in again:
            go(0.5, entry, passing)
            go(0.5, 0, -passing)
        else:
            go(1, entry + rest)
    go(0.5, head)
    go(1, -head)
    for block in reversed(range(blocks)):
        if block in again:
            go(second, 0, rest)
            go(2, 0, -rest)
            go(0, -entry)
        else:
            go(2, -entry - rest)
    return Step(times, kept, back, backward=blocks + 0.5)


def plot_steps(
    steps: Sequence[Step],
    titles: Sequence[str],
    names: Sequence[str],
    ground: tuple[str, float] = ("", 0),
    line: tuple[str, float] = ("", 0),
) -> Picture:
    """The steps beside each other, to one scale: widths are times.

    Args:
        steps, titles: one title for each step.
        names: what is kept, and what comes back; with one name both have one colour.
        ground: a name and bytes, below all the time.
        line: a name and bytes, such as those of a GPU; more than a tenth of the height below it is marked as free.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    axes = figure.subplots(1, len(steps), sharey=True, squeeze=False)[0]
    highest = max(ground[1] + step.peak for step in steps)
    unit, size = ("GB", 1e9) if highest >= 1e9 else ("MB", 1e6)
    top = 1.25 * highest / size
    longest = max(step.times[-1] for step in steps)
    alt = []
    for axis, step, title in zip(axes, steps, titles, strict=True):
        times, half, end = step.times, step.backward, step.times[-1]
        kept = [(ground[1] + x) / size for x in step.kept]
        every = [k + x / size for k, x in zip(kept, step.back, strict=True)]
        peak = max(every)
        if ground[1]:
            axis.fill_between(times, ground[1] / size, color=GROUND, lw=0, label=ground[0])
        if len(names) == 1:
            axis.fill_between(times, ground[1] / size, every, color=KEPT, lw=0, label=names[0])
        else:
            axis.fill_between(times, ground[1] / size, kept, color=KEPT, lw=0, label=names[0])
            axis.fill_between(times, kept, every, color=BACK, lw=0, label=names[1])
        axis.axvline(half, 0, 0.8, color="#777777", linestyle=":", linewidth=1)
        axis.set(xlim=(0, longest), ylim=(0, top))
        axis.set_xticks([half / 2, (half + end) / 2], ["forward", "backward"])
        axis.set_xlabel("time", fontsize=TEXT)
        axis.set_title(title, loc="left", fontsize=TITLE)
        bare(axis)
        if line[1]:
            axis.axhline(line[1] / size, color="#222222", linestyle="--", linewidth=1)
            axis.annotate(
                line[0], (0.01 * end, line[1] / size), (0, 3), textcoords="offset points", fontsize=TEXT
            )
        room = line[1] / size - peak
        near = 0 < room < 0.08 * top  # the line would cross the number
        axis.annotate(
            human(size * peak),
            (times[every.index(peak)], peak),
            (8, 0) if near else (3, 3),
            textcoords="offset points",
            va="center" if near else "baseline",
            fontsize=TEXT,
        )
        alt.append(f"{title}: the peak is {human(size * peak)}")
        if room > 0.1 * top:
            middle, arrow = 0.8 * longest, {"arrowstyle": "<->", "color": "#222222"}
            axis.annotate("", (middle, peak), (middle, line[1] / size), arrowprops=arrow)
            free = f"{human(size * room)} free"
            axis.annotate(
                free,
                (middle, peak + room / 2),
                (-6, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=TEXT,
            )
            alt[-1] += f", {free}"
    axes[0].yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes[0].yaxis.set_major_formatter(FuncFormatter(ticks_in(unit)))
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=TEXT, frameon=False)
    named = [name for name in (ground[0], *names) if name]
    return render(figure, f"Memory over a step. {'; '.join(alt)}. From below: {', '.join(named)}.")
