"""The moving picture of the first page and of the README: a training step under two schedules, as it is simulated.

``python site/moving_timeline.py`` writes the README's, ``docs/moving_timeline.svg``.

Every box lies where the engine puts it. One animation moves a play head through time, and what lies behind it is
drawn in full; where a reader wants less motion, the picture stands still and shows the whole step.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from simulator.ledgers.timeline import Span
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.pipeline.schedules import make_schedule
from simulator.plots.timeline import COLOURS, IDLE, INK, category, lightness

FILE = Path(__file__).parents[1] / "docs" / "moving_timeline.svg"
SCHEDULES = {"1f1b": "1F1B", "zb-h1": "zero bubble (ZB-H1)"}
RANKS, MICROBATCHES = 4, 8
WIDTH, LEFT, TOP = (
    736,
    58,
    24,
)  # px: the column of the site's pages, what names of ranks take, what a title takes
IDLE_DARK = "#303034"  # idle time on a dark page
ROW, GAP = 22, 14  # px: a rank; what lies between two timelines
# What a <use> draws again keeps attributes, but no styles of the page.
NUMBERS = 'font-size="11" text-anchor="middle" dominant-baseline="central" stroke-width="0.8"'
PER_UNIT, REST = (
    0.4,
    3.0,
)  # seconds: for a unit of time; for which the whole step is seen before it begins again


def executions() -> dict[str, Execution]:
    """What is drawn: title -> the simulated step."""
    return {
        title: simulate(make_schedule(name, RANKS, MICROBATCHES), 1, 1, 1)
        for name, title in SCHEDULES.items()
    }


def moving_timeline(timelines: dict[str, Execution]) -> str:
    """The figure as HTML: an SVG, a switch that stops it, and its legend."""
    seconds, distance, svg = _drawn(timelines)
    return f"""<figure class="moving" style="--sweep: {seconds + REST:g}s">
<style>{_style(seconds, distance)}</style>
{svg}
<figcaption>{_legend(timelines)}<label class="pause"><input type="checkbox"/> stop the picture</label></figcaption>
</figure>
"""


def as_file(timelines: dict[str, Execution]) -> str:
    """The same picture as a file of its own, on white paper, without the switch and the legend."""
    seconds, distance, svg = _drawn(timelines)
    own = f".moving {{ --idle: {IDLE}; --color-foreground-primary: {INK}; font-family: sans-serif; }}"
    moves = _style(seconds, distance)
    moves = moves[moves.index(".moving :is(.name") :]  # before it stand the themes of a page
    paper = f'<style>{own}\n{moves}</style><rect width="100%" height="100%" fill="#ffffff"/>'
    head, rest = svg.split(">", 1)
    return f'{head} class="moving" style="--sweep: {seconds + REST:g}s">{paper}{rest}\n'


def _drawn(timelines: dict[str, Execution]) -> tuple[float, float, str]:
    """Seconds and px of the play head's way, and the SVG."""
    longest = max(timeline.makespan for timeline in timelines.values())
    scale = (WIDTH - LEFT - 1) / longest
    parts, top = [], 0
    for number, (title, timeline) in enumerate(timelines.items()):
        parts.append(_timeline(number, title, timeline, scale, top))
        top += TOP + ROW * len(timeline.ranks) + GAP
    height = top - GAP
    svg = f"""<svg role="img" aria-label="{escape(sentence(timelines), quote=True)}" viewBox="0 0 {WIDTH} {height}"
 xmlns="http://www.w3.org/2000/svg" data-left="{LEFT}" data-scale="{scale:.6f}">
<defs><clipPath id="done">
<rect class="done" x="{LEFT}" width="{scale * longest:.2f}" height="{height}"/>
</clipPath></defs>
{"".join(parts)}<line class="head" x1="{LEFT}" x2="{LEFT}" y1="{TOP - 4}" y2="{height}"/>
</svg>"""
    return longest * PER_UNIT, scale * longest, svg


def sentence(timelines: dict[str, Execution]) -> str:
    """What is seen, for those who do not see it."""
    steps = "; ".join(
        f"{title} takes {timeline.makespan:g} units of time, and ranks are idle in {timeline.bubble():.0%} of it"
        for title, timeline in timelines.items()
    )
    return f"One training step of {RANKS} ranks and {MICROBATCHES} microbatches, under two pipeline schedules: {steps}."


def _timeline(number: int, title: str, timeline: Execution, scale: float, top: float) -> str:
    """One timeline: idle time, the boxes in pale, and the boxes again behind the play head."""
    length = f"{timeline.makespan:g} units of time, {timeline.bubble():.0%} of it idle"
    rows, boxes = [], []
    for row, rank in enumerate(timeline.ranks):
        y = top + TOP + row * ROW
        rows.append(f'<text class="name" x="{LEFT - 6}" y="{y + ROW / 2:g}">rank {rank}</text>')
        rows.append(
            f'<rect class="idle" x="{LEFT}" y="{y + 1:g}" width="{timeline.makespan * scale:.2f}" height="{ROW - 2}"/>'
        )
        boxes += [_box(span, timeline.start, scale, y) for span in timeline.of(rank, "compute")]
    return f"""<g class="timeline" data-title="{escape(title, quote=True)}">
<text class="title" x="{LEFT}" y="{top + 14}">{escape(title)}<tspan class="length" dx="10">{length}</tspan></text>
{"".join(rows)}
<g class="ahead"><g id="boxes-{number}" {NUMBERS}>{"".join(boxes)}</g></g>
<use href="#boxes-{number}" clip-path="url(#done)"/>
</g>
"""


def _box(span: Span, start: float, scale: float, y: float) -> str:
    colour = COLOURS[category(span.name)][0]
    ink = INK if lightness(colour) > 0.5 else "#ffffff"
    x, width = LEFT + (span.start - start) * scale, span.duration * scale
    place = f'x="{x:.2f}" y="{y + 1:g}" width="{width:.2f}" height="{ROW - 2}"'
    label = "".join(letter for letter in span.name.split(" ")[0] if letter.isdigit())
    return (
        f'<rect class="box" data-rank="{span.rank}" data-name="{span.name}" {place} fill="{colour}" stroke="#ffffff"/>'
        f'<text x="{x + width / 2:.2f}" y="{y + ROW / 2:g}" fill="{ink}">{label}</text>'
    )


def _legend(timelines: dict[str, Execution]) -> str:
    kinds = {category(span.name) for timeline in timelines.values() for span in timeline.spans}
    colours = {kind: shades[0] for kind, shades in COLOURS.items() if kind in kinds} | {"idle": "var(--idle)"}
    return "".join(
        f'<span class="key"><i style="background: {colour}"></i>{kind}</span>'
        for kind, colour in colours.items()
    )


def _style(seconds: float, distance: float) -> str:
    """The animation: the play head needs ``seconds`` for its way, then the whole step is seen until it begins again."""
    arrived = 100 * seconds / (seconds + REST)
    return f"""
.moving {{ --idle: {IDLE}; }}
body[data-theme="dark"] .moving {{ --idle: {IDLE_DARK}; }}
@media (prefers-color-scheme: dark) {{ body:not([data-theme="light"]) .moving {{ --idle: {IDLE_DARK}; }} }}
.moving svg {{ display: block; width: 100%; height: auto; }}
.moving :is(.name, .title) {{ fill: var(--color-foreground-primary); }}
.moving .name {{ font-size: 12px; text-anchor: end; dominant-baseline: central; }}
.moving .title {{ font-size: 13px; font-weight: 600; }}
.moving .length {{ font-weight: 400; }}
.moving .idle {{ fill: var(--idle); }}
.moving .ahead {{ opacity: 0.22; }}
.moving .done {{ transform-box: fill-box; transform-origin: left; animation: done var(--sweep) linear infinite; }}
.moving .head {{ stroke: var(--color-foreground-primary); animation: head var(--sweep) linear infinite; }}
.moving:has(.pause :checked) :is(.done, .head) {{ animation-play-state: paused; }}
@keyframes done {{ from {{ transform: scaleX(0); }} {arrived:.2f}%, to {{ transform: scaleX(1); }} }}
@keyframes head {{ from {{ transform: none; }} {arrived:.2f}%, to {{ transform: translateX({distance:.2f}px); }} }}
@media (prefers-reduced-motion: reduce) {{
  .moving :is(.done, .head) {{ animation: none; }}
  .moving :is(.head, .pause) {{ display: none; }}
}}
"""


if __name__ == "__main__":
    FILE.write_text(as_file(executions()), encoding="utf-8")
