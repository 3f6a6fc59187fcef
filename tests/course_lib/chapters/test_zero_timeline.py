"""The three plans of chapter 06 on one time line."""

import pytest

from course_lib.chapters.zero_seconds import Cluster, fewest_passes
from course_lib.chapters.zero_timeline import draw_line, plot_timeline, time_alone


def test_the_timeline_draws_the_plans_of_the_bet():
    told = plot_timeline("A100", 10).alt
    assert "stage 1, 4 passes 7.82 s, the shortest; stage 2, 2 passes 9.33 s; stage 3, 1 pass 9.07 s" in told
    assert "63/64 × 26 GB ÷ 10 GB/s = 2.56 s" in told
    alone = time_alone("A100", 10).splitlines()
    assert alone[0] == "one half: 63/64 × 26 GB ÷ 10 GB/s = 2.56 s"
    assert alone[1:] == [
        "computing, stage 1, 4 passes: 3.06 s",
        "computing, stage 2, 2 passes: 2.82 s",
        "computing, stage 3, 1 pass: 2.77 s",
    ]


def test_a_line_ends_where_its_step_ends():
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    for one in fewest_passes(Cluster("A100", 10)):
        axis = Figure().subplots()
        draw_line(axis, 0, one)
        ends = max(bar.get_x() + bar.get_width() for bar in axis.patches if isinstance(bar, Rectangle))
        assert ends == pytest.approx(one.seconds, abs=0.01)
