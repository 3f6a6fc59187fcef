"""Chapter 16's use of a cache: for each way to reserve memory, what its slots hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, TITLE, WIDTH, bare

# Hatched is what is reserved and empty, and white is free, as in ``plot_cache``.
LOOKS: tuple[dict[str, Any], ...] = (
    {"facecolor": PARTS[0], "edgecolor": PARTS[0]},
    {"facecolor": "white", "edgecolor": PARTS[1], "hatch": "/////"},
    {"facecolor": "white", "edgecolor": "#4a86ba", "hatch": "....."},
    {"facecolor": "white", "edgecolor": "#999999"},
)

NO_ROOM = "#e02020"


def plot_answers(lengths: Sequence[int], room: int, region: int = 0, wide: int = 8 * 8192) -> Picture:
    """A cache drawn as lines of slots, filled with one answer after the other; red is reserved beyond its end.

    Args:
        lengths: tokens of each answer.
        room: slots of the cache.
        region: slots that each answer reserves; 0: blocks of 16, as many as its tokens need.
        wide: slots in a line.

    Raises:
        ValueError: there is no answer, or one is longer than its region.
    """
    from matplotlib.figure import Figure

    if not lengths or (region and max(lengths) > region):
        raise ValueError(f"give one or more lengths, of at most {region or 'any number of'} tokens")
    sizes = [region or -(-length // 16) * 16 for length in lengths]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    rows = -(-max(room, sum(sizes)) // wide)
    figure = Figure(figsize=(WIDTH, 0.3 + 0.22 * rows), layout="constrained")
    axis = figure.subplots()
    for row, left, width in _lines(0, room, wide):
        axis.barh(row, width, 0.8, left, facecolor="white", edgecolor="#999999", linewidth=0.8)
    fit = 0
    for start, size, length in zip(starts, sizes, lengths, strict=True):
        inside = start + size <= room
        fit += inside
        edge = PARTS[1] if inside else NO_ROOM
        for row, left, width in _lines(start, size, wide) if region else ():
            look = {"facecolor": "white", "edgecolor": edge, "hatch": "/////", "linewidth": 0.8}
            axis.barh(row, width, 0.8, left, **look)
        for row, left, width in _lines(start, length, wide):
            colour = PARTS[0] if inside else NO_ROOM
            axis.barh(row, width, 0.8, left, color=colour, linewidth=0)
    axis.set(xlim=(-0.002 * wide, 1.002 * wide), ylim=(rows - 0.5, -0.5), xticks=[], yticks=[])
    axis.axis("off")
    way = f"regions of {region:,} slots" if region else f"{sum(sizes) // 16:,} blocks of 16 slots"
    said = f"{fit} of {len(lengths)} answers fit, in {way}"
    axis.set_title(said, loc="left", fontsize=TITLE)
    return render(figure, f"{said}; of the cache's {room:,} slots {sum(lengths):,} are for tokens.")


def _lines(start: int, size: int, wide: int) -> Iterator[tuple[int, int, int]]:
    """Row, left end and width of each line that these slots lie in."""
    while size > 0:
        row, left = divmod(start, wide)
        width = min(size, wide - left)
        yield row, left, width
        start, size = start + width, size - width


def plot_cache_use(
    ways: Mapping[str, Mapping[str, float]], measured: Mapping[str, float] | None = None
) -> Picture:
    """A bar of 100 % for each way, its parts beside each other in the order of ``LOOKS``: the first holds tokens.

    Args:
        ways: name -> (part -> percent of the slots); all have the same parts.
        measured: name -> percent of the slots that hold tokens, drawn as a line over the bar.

    Raises:
        ValueError: there is no way, or the parts are more than there are looks, or differ.
    """
    from matplotlib.figure import Figure

    parts = list(next(iter(ways.values()), ()))
    if not 0 < len(parts) <= len(LOOKS) or any(list(way) != parts for way in ways.values()):
        raise ValueError(f"give one or more ways, each with the same parts, at most {len(LOOKS)}")
    figure = Figure(figsize=(WIDTH, 0.85 + 0.42 * len(ways)), layout="constrained")
    axis = figure.subplots()
    for row, way in enumerate(ways.values()):
        left = 0.0
        for (part, share), look in zip(way.items(), LOOKS, strict=False):
            axis.barh(row, share, 0.66, left, linewidth=0.8, label="" if row else part, **look)
            if share >= 6:
                dark = look["facecolor"] != "white"
                axis.text(
                    left + share / 2,
                    row,
                    f"{share:.0f} %",
                    ha="center",
                    va="center",
                    fontsize=TEXT,
                    color="white" if dark else "#111111",
                    bbox=None if dark else {"facecolor": "white", "edgecolor": "none", "pad": 1},
                )
            left += share
    for row, name in enumerate(ways):
        if measured:
            label = "" if row else "tokens, measured"
            axis.vlines(measured[name], row - 0.45, row + 0.45, color="#e02020", linewidth=3, label=label)
    axis.set(xlim=(0, 100.5), xticks=range(0, 101, 20))
    axis.set_xlabel("% of the slots", fontsize=TEXT, loc="right")
    axis.set_yticks(range(len(ways)), list(ways))
    axis.invert_yaxis()
    bare(axis)
    figure.legend(
        loc="outside upper right", ncols=5, fontsize=TEXT, frameon=False, handlelength=1.2, columnspacing=1.2
    )
    said = (
        f"{name}: {', '.join(f'{share:.0f} % {part}' for part, share in way.items())}"
        + (f" (measured: {measured[name]:.0f} % {parts[0]})" if measured else "")
        for name, way in ways.items()
    )
    return render(figure, f"{'; '.join(said)}.")
