"""Pictures of pipelines: a prediction framed over a measurement, and schedules by their bubble and memory."""

from math import inf, nan
from xml.etree import ElementTree

import pytest

from simulator.ledgers.timeline import Span, Timeline
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule
from simulator.plots import plot_timeline
from simulator.plots.bubble_and_memory import plot_bubble_and_memory

SVG = "{http://www.w3.org/2000/svg}"
RUN = simulate(make_schedule("1f1b", 2, 3), transfer=0.5)


def texts(picture):
    return [node.text for node in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")]


def frames(picture):
    """Empty boxes with a dark edge, the legend's included."""
    paths = [node.get("d") for node in ElementTree.fromstring(picture.svg).iter(f"{SVG}path")]
    styles = [node.get("style", "") for node in ElementTree.fromstring(picture.svg).iter(f"{SVG}path")]
    return sum(
        d.count("M") for d, style in zip(paths, styles, strict=True) if "fill: none; stroke: #222222" in style
    )


def test_every_action_that_was_predicted_has_a_frame_and_messages_have_none():
    picture = plot_timeline(Timeline(RUN.spans), over=[RUN])
    assert "predicted" in texts(picture)
    assert frames(picture) >= len(RUN.of(lane="compute"))
    plain = plot_timeline(Timeline(RUN.spans))
    assert "predicted" not in texts(plain)
    assert frames(picture) - frames(plain) <= len(RUN.of(lane="compute")) + 1  # one in the legend


def test_a_prediction_that_is_longer_is_not_cut_off():
    short = Timeline([Span(0, "compute", "F0", 0, 1)])
    long = Timeline([Span(0, "compute", "F0", 0, 40)])
    assert "40" in texts(plot_timeline(short, over=[long], unit="ms"))
    assert "40" not in texts(plot_timeline(short, over=[short], unit="ms"))


def test_each_timeline_needs_one_over_it():
    with pytest.raises(ValueError, match="1 drawings need as many timelines over them, not 2"):
        plot_timeline(Timeline(RUN.spans), over=[RUN, RUN])


def test_schedules_stand_at_their_points_and_names_of_neighbours_do_not_touch():
    points = {"zb-v": (4, 0.06), "dualpipe-v": (4.5, 0.06), "gpipe": (8, 0.27)}
    picture = plot_bubble_and_memory(points)
    assert {"zb-v", "dualpipe-v", "gpipe"} <= set(texts(picture))
    assert "measured" not in texts(picture)
    assert picture.alt.startswith("Bubble over microbatches in flight on the fullest rank: zb-v 6.0% at 4,")
    heights = {
        node.text: float(node.get("transform", node.get("y", "0")).split(" ")[-1].rstrip(")"))
        if node.get("transform")
        else float(node.get("y"))
        for node in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")
        if node.text in points
    }
    assert abs(heights["zb-v"] - heights["dualpipe-v"]) > 9
    assert "measured" in texts(plot_bubble_and_memory(points, points))


@pytest.mark.parametrize("wrong", [(nan, 0.1), (4, inf), (-1, 0.1)])
def test_points_that_are_no_points_are_refused(wrong):
    with pytest.raises(ValueError, match="must be a number of at least 0"):
        plot_bubble_and_memory({"a": wrong})
    with pytest.raises(ValueError, match="must be a number of at least 0"):
        plot_bubble_and_memory({"a": (1, 0.1)}, {"a": wrong})
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_bubble_and_memory({})
