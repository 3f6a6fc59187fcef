"""The course's pictures without matplotlib, which Pyodide's package does not contain: the same arguments, plain SVG.

What is computed from the arguments (rows, colours, names, the sentence for readers who see no picture) is taken from
``simulator.plots``. ``install`` puts these functions in the place of those that draw with matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence

from play.browser.svg import LINE, SMALL, Svg, ticks, wide
from simulator import plots
from simulator.inputs.checks import positive
from simulator.ledgers.memory import MemoryBreakdown
from simulator.ledgers.timeline import Timeline
from simulator.plots import memory_bars
from simulator.plots import timeline as timelines_of
from simulator.plots.picture import COLUMN, Picture
from simulator.plots.style import CATEGORIES, human, label_of, titles_for, unit_of
from simulator.plots.timeline import COLOURS, IDLE, INK, category, shade

ROW = 28  # px of a rank's row in a timeline
WHOLE = 4000  # spans beyond which a picture's file would be too large for a page


def plot_timeline(
    *timelines: Timeline,
    titles: Sequence[str] | None = None,
    unit: str = "",
    alt: str | None = None,
) -> Picture:
    """Who did what when, as ``simulator.plots.plot_timeline`` draws it: one row a rank, all to one scale."""
    if not timelines or not all(timeline.spans for timeline in timelines):
        raise ValueError("there is nothing to draw: give at least one timeline, each with at least one span")
    if (spans := sum(len(timeline.spans) for timeline in timelines)) > WHOLE:
        raise ValueError(f"a picture of this page has at most {WHOLE:,} actions, not {spans:,}")
    titles = timelines_of.titles_of(timelines, titles)
    rows = [timelines_of.rows_of(timeline) for timeline in timelines]
    left = 16 + max(wide(timelines_of.row_name(rank, lane)) for lanes in rows for rank, lane, _ in lanes)
    longest = max(timeline.makespan for timeline in timelines) or 1
    scale = (COLUMN - left - 4) / longest
    svg, used, body = Svg(), set(), Svg()
    y = 0.0
    for timeline, lanes, title in zip(timelines, rows, titles, strict=True):
        if title:
            body.text(left, y + 14, title, size=13)
        y = 4 + _rows(body, timeline, lanes, left, y + (26 if title else 6), scale, used)
    end = y
    if unit:
        for tick in ticks(longest, 8):
            body.line([(left + tick * scale, end + 2), (left + tick * scale, end + 6)])
            body.text(left + tick * scale, end + 14, f"{tick:g}", "middle")
    body.text(COLUMN - 2, end + (30 if unit else 12), f"time, {unit}" if unit else "time", "end")
    entries = [(first, name) for name, (first, _) in COLOURS.items() if name in used] + [(IDLE, "idle")]
    if any(chunks > 1 for t in timelines for _, chunks in timelines_of.stages_of(t).values()):
        entries.append(("", "(paler: a later chunk of the rank)"))
    top = svg.legend(entries, 0) + 6
    svg.parts.append(f'<g transform="translate(0 {top:.1f})">{"".join(body.parts)}</g>')
    sentence = "; ".join(map(timelines_of.timeline_sentence, timelines, titles)) + "."
    return svg.picture(top + end + (40 if unit else 22), alt or sentence)


def _rows(
    svg: Svg,
    timeline: Timeline,
    lanes: list[tuple[int, str, float]],
    left: float,
    y: float,
    scale: float,
    used: set[str],
) -> float:
    """The rows of one timeline from ``y`` down; returns where they end."""
    stages = timelines_of.stages_of(timeline)
    for rank, lane, part in lanes:
        height = ROW * part * 0.9
        if part == 1:
            svg.text(left - 6, y + height / 2, timelines_of.row_name(rank, lane), "end")
            svg.box(left, y, timeline.makespan * scale, height, IDLE)
        for span in timeline.of(rank, lane):
            what = category(span.name)
            colour = shade(what, *stages.get(timelines_of.stage_of(span.name), (0, 1)))
            x, width = left + (span.start - timeline.start) * scale, (span.end - span.start) * scale
            svg.box(x, y, width, height, colour, 0.8 if width > 3 else 0)
            used.add(what)
            number = timelines_of.label_in(span.name)
            if part == 1 and number and width >= 0.65 * SMALL * len(number):
                svg.inside(x + width / 2, y + height / 2, number, colour)
        y += ROW * part
    return y


def plot_memory(
    *memories: MemoryBreakdown | Sequence[MemoryBreakdown],
    titles: Sequence[str] | None = None,
    capacity: float | None = None,
    bars: Sequence[str] | None = None,
    device: str = "",
) -> Picture:
    """What each rank must hold, as ``simulator.plots.plot_memory`` draws it: a bar each, stacked by category."""
    sets = [[m] if isinstance(m, MemoryBreakdown) else list(m) for m in memories]
    if not sets or not all(sets):
        raise ValueError("there is nothing to draw: give at least one MemoryBreakdown")
    if capacity is not None:
        positive(capacity=capacity)
    if bars is not None and any(len(ranks) != len(bars) for ranks in sets):
        raise ValueError(f"{len(bars)} bars are named, so each set must have as many, not {len(sets[0])}")
    titles = titles_for(titles, len(sets))
    every = [held for ranks in sets for held in ranks]
    most = 1.12 * max([capacity or 0, *(held.occupied for held in every)]) or 1
    unit, size = unit_of(most)
    shown = [name for name in CATEGORIES if any(getattr(held, name) for held in every)]
    svg = Svg()
    top, tall, left = svg.legend([(CATEGORIES[name], label_of(name)) for name in shown], 0) + 24, 220, 62
    line = f"{human(capacity)}, {device}" if capacity and device else human(capacity or 0)
    right = COLUMN - (wide(line) + 6 if capacity else 4)
    for tick in ticks(most / size, 5):
        y = top + tall - tick * size / most * tall
        svg.line([(left, y), (right, y)], LINE)
        svg.text(left - 6, y, f"{tick:g} {unit}" if tick else "0", "end")
    step = (right - left) / (len(every) + len(sets) - 1)
    at, totals = 0, []
    for ranks, title in zip(sets, titles, strict=True):
        svg.text(left + at * step + 4, top - 14, title, size=13)
        for rank, held in enumerate(ranks):
            middle, y = left + (at + 0.5) * step, top + tall
            for name in shown:
                height = getattr(held, name) / most * tall
                svg.box(middle - 0.38 * step, y - height, 0.76 * step, height, CATEGORIES[name])
                y -= height
            totals.append((middle, y - 9, f"{held.occupied / size:.3g}"))
            if bars or step >= 14 or rank % 8 == 0:
                for k, word in enumerate(_lines(bars[rank] if bars else str(rank), step)):
                    svg.text(middle, top + tall + 12 + 15 * k, word, "middle")
            at += 1
        at += 1
    if capacity:
        y = top + tall - capacity / most * tall
        svg.line([(left, y), (right, y)], INK, 1.2, "5 4")
        svg.text(right + 4, y, line)
    for middle, y, total in totals if step >= 34 else ():
        svg.text(middle, y, total, "middle", clear=True)
    if bars is None:
        svg.text(right, top + tall + 28, "rank", "end")
    deep = max((len(_lines(bar, step)) for bar in bars), default=1) if bars else 2
    sentences = (memory_bars.memory_sentence(r, t, bars) for r, t in zip(sets, titles, strict=True))
    return svg.picture(top + tall + 12 + 15 * deep, "; ".join(sentences) + ".")


def _lines(name: str, room: float) -> list[str]:
    return [name] if wide(name) <= room else name.split()


def install() -> None:
    """From now on ``from simulator.plots import plot_timeline`` gives the function of this file, and so on."""
    from play.browser.histories import plot_bytes_over_time

    for function in (plot_timeline, plot_memory, plot_bytes_over_time):
        setattr(plots, function.__name__, function)
