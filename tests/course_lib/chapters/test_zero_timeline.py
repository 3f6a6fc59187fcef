"""The three plans of chapter 06 on one time line."""

import pytest

from course_lib.chapters.zero_seconds import Cluster, fewest_passes
from course_lib.chapters.zero_timeline import draw_line, plot_timeline, time_alone


def test_the_timeline_draws_the_plans_of_the_bet():
    told = plot_timeline("A100", 10).alt
    for sums in (
        "stage 1, 4 passes: 3.06 s computing + 2 × 2.56 s − 0.36 s hidden = 7.82 s, the shortest",
        "stage 2, 2 passes: 2.82 s computing + 3 × 2.56 s − 1.17 s hidden = 9.33 s",
        "stage 3, 1 pass: 2.77 s computing + 3 × 2.56 s − 1.38 s hidden = 9.07 s",
    ):
        assert sums in told
    assert "63/64 × 26 GB ÷ 10 GB/s = 2.56 s" in told
    alone = time_alone("A100", 10).splitlines()
    assert alone[0] == "one half: 63/64 × 26 GB ÷ 10 GB/s = 2.56 s"
    assert alone[1:] == [
        "computing, stage 1, 4 passes: 3.06 s",
        "computing, stage 2, 2 passes: 2.82 s",
        "computing, stage 3, 1 pass: 2.77 s",
    ]


def test_less_than_a_hundredth_is_a_tie():
    told = plot_timeline("H100", 320).alt
    assert "= 1.37 s; stage 2" in told
    assert "= 1.21 s, a tie; stage 3" in told
    assert told.endswith("= 1.20 s, a tie.")


def test_a_cluster_without_room_is_drawn():
    told = plot_timeline("H100", 320, gpus=16, sequences=1, model="llama-3-70b").alt
    assert told.count("no room") == 3
    assert "shortest" not in told


def test_a_line_ends_where_its_step_ends():
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    for one in fewest_passes(Cluster("A100", 10)):
        axis = Figure().subplots()
        draw_line(axis, 0, one, one.seconds)
        ends = max(bar.get_x() + bar.get_width() for bar in axis.patches if isinstance(bar, Rectangle))
        assert ends == pytest.approx(one.seconds, abs=0.01)
