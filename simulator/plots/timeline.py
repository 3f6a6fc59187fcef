"""The drawing of a timeline, predicted or measured: rows of numbered boxes, in which idle time is pale grey."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from simulator.inputs.checks import positive
from simulator.ledgers.timeline import Timeline
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Light to dark: forward, backward, weights; the second colour of each is the last chunk's. No two kinds share a grey.
COLOURS = {
    "forward": ("#9cc9ee", "#c6e1f6"),
    "backward": ("#cc6a26", "#e28f55"),
    "weight gradients": ("#143f30", "#2f6b53"),
    "forward + backward": ("#6a4c93", "#8d74b0"),
    "send": ("#8a8a8a", "#8a8a8a"),
    "all-gather": ("#e8c547", "#e8c547"),
    "reduce-scatter": ("#6b4c9a", "#6b4c9a"),
    "all-reduce": ("#1f7a6d", "#1f7a6d"),
    "update": ("#4d4d4d", "#4d4d4d"),
    "detect": ("#cc6a26", "#cc6a26"),
    "re-form": ("#9cc9ee", "#9cc9ee"),
    "restore": ("#e8c547", "#e8c547"),
    "catch up": ("#143f30", "#143f30"),
    "coding": ("#143f30", "#143f30"),
    "other": ("#b9b9b9", "#b9b9b9"),
}
KINDS = {"F": "forward", "B": "backward", "W": "weight gradients"}
RECOVERY = "detect|re-form|restore|catch up"  # how ranks go on after a failure (chapter 20)
IDLE = "#f0f0f0"
INK = "#222222"
NUMBER = 8.4  # points: 11.2 px in a notebook
CLEAR = 0.22  # of a row's height, above and below its middle: where a frame's line stops for a number
DENSE = 1500  # spans in one drawing beyond which boxes become pixels and lose their numbers

Written = tuple[float, float, float]  # a number's left and right end and its middle, in the units of the axes


def plot_timeline(
    *timelines: Timeline,
    titles: Sequence[str] | None = None,
    over: Sequence[Timeline] | None = None,
    unit: str = "",
    width: float = WIDTH,
    alt: str | None = None,
) -> Picture:
    """Who did what when: one row a rank, and a thinner row for each further lane; several are drawn to one scale.

    Args:
        timelines: predicted or measured. Spans are coloured by what their names say they are; the number in a
            box is the microbatch or layer, and ``b0`` is bucket 0.
        titles: one for each timeline; None: the schedule's name where there is one.
        over: for each timeline another one, of which the computing is drawn over it as dark frames: what was
            predicted, over what was measured.
        unit: of the time axis, such as ``"seconds"``; without it the axis has no numbers.
        width: inches; the default fills a notebook's column, a file may be wider.
        alt: the sentence that says what is seen; by default one with lengths and idle times, which for a
            measured timeline are others in every run.
    """
    from matplotlib.figure import Figure

    if not timelines or not all(timeline.spans for timeline in timelines):
        raise ValueError("there is nothing to draw: give at least one timeline, each with at least one span")
    positive(width=width)
    titles = titles_of(timelines, titles)
    framed: Sequence[Timeline | None] = [None] * len(timelines) if over is None else over
    if len(framed) != len(timelines):
        raise ValueError(f"{len(timelines)} drawings need as many timelines over them, not {len(framed)}")
    rows = [rows_of(timeline) for timeline in timelines]
    heights = [sum(height for *_, height in lanes) for lanes in rows]
    figure = Figure(figsize=(width, 0.75 + sum(0.3 * h + 0.5 for h in heights)), layout="constrained")
    axes = figure.subplots(len(timelines), 1, squeeze=False, height_ratios=[h + 1 for h in heights])[:, 0]
    longest = max(timeline.makespan for timeline in (*timelines, *filter(None, framed))) or 1
    names = [row_name(rank, lane) for lanes in rows for rank, lane, _ in lanes]
    room = 72 * width - 0.6 * TEXT * max(map(len, names)) - 15  # points from left to right
    drawn: set[str] = set()
    for axis, timeline, frames, lanes, title in zip(axes, timelines, framed, rows, titles, strict=True):
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.set_xlim(0, longest)
        used, written = _draw(axis, timeline, lanes, points=room / longest)
        drawn |= used
        if frames is not None:
            _frame(axis, frames, lanes, written)
        if not unit:
            axis.set_xticks([])
    axes[-1].set_xlabel(f"time, {unit}" if unit else "time", fontsize=TEXT, loc="right")
    chunks = any(chunks > 1 for t in timelines for _, chunks in stages_of(t).values())
    _legend(figure, width, drawn, chunks=chunks, framed=over is not None)
    return render(figure, alt or "; ".join(map(timeline_sentence, timelines, titles)) + ".")


def rows_of(timeline: Timeline) -> list[tuple[int, str, float]]:
    """Rank, lane and height of every row, from top to bottom: compute first."""
    order = sorted(timeline.lanes, key=lambda lane: (lane != "compute", lane))
    present = {(span.rank, span.lane) for span in timeline.spans}
    computing = {span.lane for span in timeline.spans if not span.name.startswith("send ")} | {order[0]}
    return [
        (rank, lane, 1.0 if lane in computing else 0.4)
        for rank in timeline.ranks
        for lane in order
        if (rank, lane) in present
    ]


def _draw(
    axis: Axes, timeline: Timeline, rows: list[tuple[int, str, float]], points: float
) -> tuple[set[str], list[Written]]:
    """Fill one set of axes, in which a time unit is that many ``points`` wide; returns the kinds and the numbers."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    dense = len(timeline.spans) > DENSE
    stages = stages_of(timeline)

    @cache
    def look(name: str) -> tuple[str, str]:
        what = category(name)
        return what, shade(what, *stages.get(stage_of(name), (0, 1)))

    boxes: dict[str, list] = {}
    numbers, ticks, used = [], [], set()
    top = 0.0
    for rank, lane, height in rows:
        low, high = -top - height * 0.95, -top - height * 0.05
        if height == 1:
            boxes.setdefault(IDLE, []).append(
                [(0, low), (0, high), (timeline.makespan, high), (timeline.makespan, low)]
            )
            ticks.append(((low + high) / 2, row_name(rank, lane)))
        for span in timeline.of(rank, lane):
            what, colour = look(span.name)
            start, end = span.start - timeline.start, span.end - timeline.start
            boxes.setdefault(colour, []).append([(start, low), (start, high), (end, high), (end, low)])
            used.add(what)
            if height == 1 and not dense:
                numbers.append(
                    ((start + end) / 2, (low + high) / 2, label_in(span.name), (end - start) * points, colour)
                )
        top += height
    for colour, corners in boxes.items():  # one path a colour: the file stays small
        edge = 0 if dense or colour == IDLE else 0.6
        outline = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY]
        path = Path([corner for box in corners for corner in (*box, box[0])], outline * len(corners))
        axis.add_artist(  # add_patch would look for the limits, which are known, box by box
            PathPatch(
                path, facecolor=colour, edgecolor="white", linewidth=edge, rasterized=dense, clip_on=dense
            )
        )
    written = [] if dense else _write(axis, numbers, points)
    axis.set_ylim(-top, 0)
    axis.set_yticks(*zip(*ticks, strict=True))
    axis.tick_params(length=0, labelsize=TEXT)
    axis.spines[:].set_visible(False)
    return used, written


def _frame(
    axis: Axes, timeline: Timeline, rows: list[tuple[int, str, float]], written: list[Written]
) -> None:
    """The computing of another timeline, as empty boxes over rows that are drawn already; no line crosses a number."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    top, lines = 0.0, []
    for rank, lane, height in rows:
        low, high = -top - height * 0.95, -top - height * 0.05
        numbers = [(left, right) for left, right, y in written if low < y < high]
        for span in timeline.of(rank, lane) if lane == "compute" else ():
            sides = span.start - timeline.start, span.end - timeline.start
            gaps = [CLEAR * any(left < x < right for left, right in numbers) for x in sides]
            for outer, away in ((high, 1), (low, -1)):  # the upper half of the frame, and the lower half
                ends = [(x, (low + high) / 2 + away * gap) for x, gap in zip(sides, gaps, strict=True)]
                lines.append([ends[0], (sides[0], outer), (sides[1], outer), ends[1]])
        top += height
    if lines:
        path = Path.make_compound_path(*map(Path, lines))  # one path: the file stays small
        axis.add_patch(PathPatch(path, facecolor="none", edgecolor=INK, linewidth=0.9, clip_on=False))


def label_in(name: str) -> str:
    """What a box says: the number of its microbatch or layer, or that it is the embedding.

    A bucket says ``b0``: it is no layer's number.
    """
    prefix = "b" if name.startswith("bucket ") else ""
    return prefix + "+".join(re.findall(r"(?<!stage )(?<![.\w])[A-Z]?(\d+|e(?:mbedding)?\b)", name))


def row_name(rank: int, lane: str) -> str:
    return f"rank {rank}" if lane in ("compute", "recovery") else lane


def _write(axis: Axes, numbers: list[tuple[float, float, str, float, str]], points: float) -> list[Written]:
    """The numbers of those boxes that have room for them; returns where they stand."""
    written = []
    for x, y, text, room, colour in numbers:
        if text and room >= 0.65 * len(text) * NUMBER:
            ink = INK if lightness(colour) > 0.5 else "white"
            axis.text(x, y, text, ha="center", va="center_baseline", fontsize=NUMBER, color=ink)
            half = (0.32 * len(text) * NUMBER + 1) / points
            written.append((x - half, x + half, y))
    return written


def category(name: str) -> str:
    """What a span is, from its name: the key of its colour."""
    if " + " in name:
        return "forward + backward"
    if match := re.match(
        rf"([FBW])(?:\d| )|(forward|backward|send|all-gather|reduce-scatter|update|coding|{RECOVERY})\b", name
    ):
        return KINDS.get(match[1] or match[2], match[2])
    return "all-reduce" if re.match("bucket|all-reduce", name) else "other"


@cache
def stage_of(name: str) -> int:
    match = re.search(r"stage (\d+)", name)
    return int(match[1]) if match else -1


def stages_of(timeline: Timeline) -> dict[int, tuple[int, int]]:
    """For every stage named in the spans: which chunk of its rank it is, and of how many."""
    held: dict[int, set[int]] = {}
    for span in timeline.spans:
        if span.lane == "compute" and (stage := stage_of(span.name)) >= 0:
            held.setdefault(span.rank, set()).add(stage)
    return {s: (k, len(stages)) for stages in held.values() for k, s in enumerate(sorted(stages))}


def shade(what: str, chunk: int, chunks: int) -> str:
    """Between the first chunk's colour and the last chunk's."""
    first, last = COLOURS[what]
    share = chunk / (chunks - 1) if chunks > 1 else 0
    mixed = [a + (b - a) * share for a, b in zip(_rgb(first), _rgb(last), strict=True)]
    return "#" + "".join(f"{round(value):02x}" for value in mixed)


def _rgb(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def lightness(colour: str) -> float:
    """CIE lightness of ``"#rrggbb"``, 0 black to 1 white: what a grey printer keeps of it."""
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (c / 255 for c in _rgb(colour))
    ]
    luminance = sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 1.16 * luminance ** (1 / 3) - 0.16 if luminance > 0.008856 else 9.033 * luminance


def _legend(figure: Figure, width: float, used: set[str], chunks: bool, framed: bool = False) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=first, label=name) for name, (first, _) in COLOURS.items() if name in used]
    patches.append(Patch(color=IDLE, label="idle"))
    if framed:
        patches.append(Patch(facecolor="none", edgecolor=INK, label="predicted"))
    if chunks:
        patches.append(Patch(color="none", label="(paler: a later chunk of the rank)"))
    letters = max(len(str(patch.get_label())) for patch in patches) if len(patches) > 4 else 0
    columns = (
        max(1, min(len(patches), int(72 * width / (0.58 * TEXT * letters + 34)))) if letters else len(patches)
    )
    figure.legend(
        handles=patches,
        loc="outside upper right",
        ncols=columns,
        fontsize=TEXT,
        frameon=False,
        columnspacing=1.2,
        handlelength=1.4,
    )


def titles_of(timelines: Sequence[Timeline], titles: Sequence[str] | None) -> Sequence[str]:
    if titles is None:
        schedules = [getattr(timeline, "schedule", None) for timeline in timelines]
        return [schedule.name if schedule else "" for schedule in schedules]
    if len(titles) != len(timelines):
        raise ValueError(f"{len(timelines)} drawings need as many titles, not {len(titles)}")
    return titles


def timeline_sentence(timeline: Timeline, title: str) -> str:
    idle = f", {timeline.bubble():.1%} of the computing time idle" if "compute" in timeline.lanes else ""
    subject = f"Timeline of {title}" if title else "Timeline"
    return f"{subject} on {len(timeline.ranks)} ranks: {timeline.makespan:.4g} long{idle}"
