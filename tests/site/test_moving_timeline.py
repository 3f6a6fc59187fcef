"""The moving picture of the first page shows the simulator's own times."""

import re
from xml.etree import ElementTree

import pytest
from moving_timeline import FILE, RANKS, SCHEDULES, as_file, executions, moving_timeline, sentence

from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule

SVG = "{http://www.w3.org/2000/svg}"


def drawn(timelines):
    html = moving_timeline(timelines)
    return html, ElementTree.fromstring(re.search(r"<svg.*</svg>", html, re.DOTALL)[0])


@pytest.mark.parametrize("speeds", [None, (1, 0.5, 2, 1)], ids=["equal ranks", "unequal ranks"])
def test_every_box_lies_where_the_engine_puts_it(speeds):
    timelines = {
        title: simulate(make_schedule(name, RANKS, 8), 1, 1.5, 0.5, speeds=speeds)
        for name, title in SCHEDULES.items()
    }
    _, svg = drawn(timelines)
    left, scale = float(svg.get("data-left")), float(svg.get("data-scale"))
    groups = [group for group in svg.iter(f"{SVG}g") if group.get("class") == "timeline"]
    assert [group.get("data-title") for group in groups] == list(SCHEDULES.values())
    for group, timeline in zip(groups, timelines.values(), strict=True):
        boxes = [box for box in group.iter(f"{SVG}rect") if box.get("class") == "box"]
        spans = [span for span in timeline.spans if span.lane == "compute"]
        found = {(int(box.get("data-rank")), box.get("data-name")): box for box in boxes}
        assert len(boxes) == len(spans) == len(found)
        for span in spans:
            box = found[span.rank, span.name]
            assert (float(box.get("x")) - left) / scale == pytest.approx(span.start, abs=1e-3)
            assert float(box.get("width")) / scale == pytest.approx(span.duration, abs=1e-3)


def test_the_picture_says_what_it_shows():
    timelines = executions()
    html, svg = drawn(timelines)
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == sentence(timelines)
    for timeline in timelines.values():
        assert f"{timeline.makespan:g} units of time, {timeline.bubble():.0%} of it idle" in html
    assert min(timelines.values(), key=lambda t: t.bubble()).schedule.name == "zb-h1"


def test_the_play_head_arrives_when_the_longest_step_ends():
    html, svg = drawn(executions())
    longest = max(timeline.makespan for timeline in executions().values())
    distance = float(svg.get("data-scale")) * longest
    assert float(re.search(r"translateX\(([\d.]+)px\)", html)[1]) == pytest.approx(distance, abs=0.01)


def test_less_motion_is_respected_and_everyone_can_stop_it():
    html, _ = drawn(executions())
    reduced = html.partition("prefers-reduced-motion: reduce")[2]
    assert "animation: none" in reduced
    assert '<input type="checkbox"/>' in html
    assert "animation-play-state: paused" in html


def test_the_readmes_picture_is_the_same_and_stands_alone():
    text = FILE.read_text(encoding="utf-8")
    assert text == as_file(executions()), "run python site/moving_timeline.py"
    svg = ElementTree.fromstring(text)
    _, pages = drawn(executions())
    assert len(list(svg.iter(f"{SVG}text"))) == len(list(pages.iter(f"{SVG}text")))
    style = next(svg.iter(f"{SVG}style")).text
    assert set(re.findall(r"var\((--[\w-]+)\)", style + text)) <= set(
        re.findall(r"(--[\w-]+):", style + text)
    )
    assert "animation: none" in style.partition("prefers-reduced-motion")[2]
