"""The picture of bytes over time, without matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from play.browser.svg import LINE, SIZE, Svg, ticks, wide
from simulator.ledgers.memory import MemoryHistory
from simulator.plots.bytes_over_time import history_sentence
from simulator.plots.picture import COLUMN, Picture
from simulator.plots.style import CATEGORIES, human, label_of, titles_for, unit_of
from simulator.plots.timeline import INK


def plot_bytes_over_time(
    *histories: Sequence[MemoryHistory],
    titles: Sequence[str] | None = None,
    unit: str = "",
    names: Mapping[str, str] | None = None,
    alt: str | None = None,
) -> Picture:
    """Bytes alive on every rank over time, as ``simulator.plots.plot_bytes_over_time`` draws it.

    Two sets of histories stand beside each other, more stand one below the other; all are drawn to one scale.
    """
    if not histories or not all(histories):
        raise ValueError("there is nothing to draw: give at least one list of histories")
    titles = titles_for(titles, len(histories))
    every = [history for held in histories for history in held]
    columns = 2 if len(histories) == 2 else 1
    most = 1.3 * max(history.peak.bytes for history in every) or 1
    longest = max(history.end for history in every) or 1
    shown = [c for c in CATEGORIES if any(getattr(held, c) for history in every for held in history.held)]
    svg = Svg()
    y = svg.legend([(CATEGORIES[c], (names or {}).get(c, label_of(c))) for c in shown], 0) + 6
    left = 8 + max(wide(f"rank {history.rank}") for history in every) + 46
    width = (COLUMN - left - 16 * (columns - 1) - 6) / columns
    top = y
    for i, (held, title) in enumerate(zip(histories, titles, strict=True)):
        x = left + (i % columns) * (width + 16)
        y = top if columns == 2 else y
        svg.text(x, y + 8, title, size=13)
        y += 20
        for history in held:
            _panel(svg, history, x, y, width, 74, most, longest, named=x == left)
            y += 90
        if unit:
            for tick in ticks(longest, 5):
                svg.text(x + tick / longest * width, y - 4, f"{tick:g}", "middle")
        svg.text(x + width, y + 14, f"time, {unit}" if unit else "time", "end")
        y += 28
    sentence = "; ".join(map(history_sentence, histories, titles)) + "."
    return svg.picture(y, alt or sentence)


def _panel(
    svg: Svg,
    history: MemoryHistory,
    x: float,
    y: float,
    width: float,
    tall: float,
    most: float,
    longest: float,
    named: bool,
) -> None:
    """One rank: a stack of areas, its peak, and the name of the rank at the left."""
    unit, size = unit_of(most)
    for tick in ticks(most / size, 3):
        at = y + tall - tick * size / most * tall
        svg.line([(x, at), (x + width, at)], LINE)
        if named:
            svg.text(x - 5, at, f"{tick:g} {unit}" if tick else "0", "end", 11)
    if named:
        svg.text(0, y + tall / 2, f"rank {history.rank}")
    times, held = [*history.times, history.end], [*history.held, history.held[-1]]
    base = [0.0] * len(held)
    for name, colour in CATEGORIES.items():
        if any(getattr(h, name) for h in held):
            upper = [b + getattr(h, name) for b, h in zip(base, held, strict=True)]
            svg.area(
                [
                    (x + t / longest * width, y + tall - v / most * tall)
                    for t, v in _outline(times, base, upper)
                ],
                colour,
            )
            base = upper
    peak = history.peak
    late = peak.time > longest / 2
    px, py = x + peak.time / longest * width, y + tall - peak.bytes / most * tall
    svg.area([(px - 4, py - 7), (px + 4, py - 7), (px, py)], INK)
    words = f"{human(peak.bytes)} at {peak.action}" if peak.action else human(peak.bytes)
    svg.text(px + (-7 if late else 7), py - 8, words, "end" if late else "start", SIZE, clear=True)


def _outline(times: list[float], base: list[float], upper: list[float]) -> list[tuple[float, float]]:
    """The corners of an area that keeps its height until the next time: along the top, and back along the bottom."""
    corners = []
    for values, order in ((upper, 1), (base, -1)):
        steps = [
            point
            for i in range(len(times) - 1)
            for point in ((times[i], values[i]), (times[i + 1], values[i]))
        ]
        corners += steps[::order]
    return corners
