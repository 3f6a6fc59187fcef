"""Pictures of pipelines: a prediction framed over a measurement, and schedules by their bubble and memory."""

import re
from xml.etree import ElementTree

import pytest

from simulator.ledgers.timeline import Span, Timeline
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule
from simulator.plots import plot_timeline

SVG = "{http://www.w3.org/2000/svg}"
RUN = simulate(make_schedule("1f1b", 2, 3), transfer=0.5)


def texts(picture):
    return [node.text for node in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")]


def dark_lines(picture):
    """The lines of empty boxes with a dark edge, the legend's included: lists of points (x, y)."""
    nodes = ElementTree.fromstring(picture.svg).iter(f"{SVG}path")
    paths = [node.get("d") for node in nodes if "fill: none; stroke: #222222" in node.get("style", "")]
    lines = [line for path in paths for line in path.split("M")[1:]]
    return [[(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", line)] for line in lines]


def test_every_action_that_was_predicted_has_a_frame_and_messages_have_none():
    picture = plot_timeline(Timeline(RUN.spans), over=[RUN])
    assert "predicted" in texts(picture)
    halves = 2 * len(RUN.of(lane="compute"))  # a frame has an upper and a lower half
    assert len(dark_lines(picture)) >= halves
    plain = plot_timeline(Timeline(RUN.spans))
    assert "predicted" not in texts(plain)
    assert len(dark_lines(picture)) - len(dark_lines(plain)) <= halves + 1  # one in the legend


def test_no_line_of_a_frame_crosses_a_number():
    run = simulate(make_schedule("zb-h1", 2, 8))
    late = Timeline([Span(s.rank, s.lane, s.name, 1.05 * s.start, 1.05 * s.end) for s in run.spans])
    picture = plot_timeline(late, over=[run])
    halves = [line for line in dark_lines(picture) if len(line) == 4]
    sides = [(x, min(a, b), max(a, b)) for line in halves for (x, a), (_, b) in (line[:2], line[2:])]
    words = [node for node in ElementTree.fromstring(picture.svg).iter(f"{SVG}text") if node.text.isdigit()]
    assert len(words) == len(run.of(lane="compute"))
    numbers = [(float(node.get("x")), float(node.get("y")) - 3) for node in words]  # their middles
    beside = [(a, b, y) for x, a, b in sides for n, y in numbers if abs(x - n) < 3 and a - 15 < y < b + 15]
    assert beside  # frames whose lines would cross a number, if they did not stop before it
    assert not [(a, b, y) for a, b, y in beside if a - 2 < y < b + 2]


def test_a_prediction_that_is_longer_is_not_cut_off():
    short = Timeline([Span(0, "compute", "F0", 0, 1)])
    long = Timeline([Span(0, "compute", "F0", 0, 40)])
    assert "40" in texts(plot_timeline(short, over=[long], unit="ms"))
    assert "40" not in texts(plot_timeline(short, over=[short], unit="ms"))


def test_each_timeline_needs_one_over_it():
    with pytest.raises(ValueError, match="1 drawings need as many timelines over them, not 2"):
        plot_timeline(Timeline(RUN.spans), over=[RUN, RUN])
