"""Chapter 19: what 1 % gains where messages are hidden or exposed, and what the eight machines of chapter 05 gain."""

import pytest

from course_lib.chapters.coding_race import (
    PART,
    backward_with,
    exposed_with,
    faster_from,
    plot_saved,
    plot_steps,
    race,
    saved,
)
from course_lib.chapters.ddp_step import BATCH, gpt2_step
from course_lib.chapters.eight_machines import (
    method_on_gpus,
    one_gpu,
    share_left,
    step_on_gpus,
    step_with,
    thin_share,
    within,
)
from course_lib.chapters.refused import Refused


def test_backward_hides_all_messages_but_the_last_until_they_queue():
    assert backward_with(6).makespan == 106
    assert backward_with(12).makespan == 10 + 10 * 12
    assert backward_with(0.6, 1.5).makespan == pytest.approx(115.6)


def test_coding_of_0_9_ms_takes_back_what_the_longest_hidden_message_saves():
    assert backward_with(PART * 10).makespan == 101
    assert backward_with(PART * 10, 0.9).makespan == pytest.approx(backward_with(10).makespan)


@pytest.mark.parametrize(("coding", "message"), [(0, 0), (0.54, 6), (0.9, 10), (5.4, 14.545), (50, 59.596)])
def test_one_percent_is_faster_from_the_message_on_that_two_timelines_end_with_alike(coding, message):
    assert faster_from(coding) == pytest.approx(message, abs=1e-3)
    whole, percent = backward_with(faster_from(coding)), backward_with(PART * faster_from(coding), coding)
    assert whole.makespan == pytest.approx(percent.makespan)
    assert saved(faster_from(coding)) == pytest.approx(10 * coding)


def test_what_is_saved_rises_ten_times_as_steeply_where_messages_queue():
    assert "at most 9, at 20.4 ms 112. Coding takes 54: faster from 14.5 ms on" in plot_saved(5.4).alt
    assert "Coding takes 5.4: faster from 6 ms on" in plot_saved(0.54).alt
    assert "Coding takes 6,800" in plot_saved(680).alt


def test_pictures_say_what_is_seen():
    assert "115.6 long" in race(6, 1.5).alt
    lines = {
        "whole": exposed_with("whole gradients"),
        "1 %": exposed_with("top-k"),
        "hidden": backward_with(6),
    }
    said = plot_steps(lines).alt
    assert "whole: 721 ms, 15 of them computing" in said
    assert "1 %: 71.7 ms, 15 of them computing" in said
    assert "hidden: 106 ms, 100 of them computing" in said


def test_only_650_ms_of_coding_take_back_what_the_exposed_machines_gain():
    whole, percent = (exposed_with(name).makespan for name in ("whole gradients", "top-k"))
    assert whole - percent == pytest.approx(650, abs=1)
    assert 1e3 * step_on_gpus(method_on_gpus("top-k", coding=1)) == pytest.approx(percent + 1)


def test_the_eight_machines_are_those_of_chapter_05():
    whole = method_on_gpus("whole gradients")
    assert 1e3 * step_on_gpus(whole) == pytest.approx(gpt2_step(8, BATCH).makespan, rel=1e-3)
    percent = method_on_gpus("top-k", coding=15)
    assert percent.sent == pytest.approx(0.08 * whole.sent, rel=1e-3)
    assert 1 < one_gpu() / step_on_gpus(percent) < 1.5 < step_on_gpus(whole) / one_gpu()


@pytest.mark.parametrize("coding", [0, 2, 10])
def test_a_share_of_the_bytes_takes_that_share_of_the_messages_time(coding):
    assert step_with(1, coding) == pytest.approx(
        1e3 * step_on_gpus(method_on_gpus("whole gradients")) + coding
    )
    left = share_left(coding)
    assert step_with(left, coding) == pytest.approx(1e3 * one_gpu() / 3)
    for exact in (method_on_gpus("top-k"), method_on_gpus("PowerSGD", r=32)):  # latency is left out
        share = exact.sent / method_on_gpus("whole gradients").sent
        assert step_with(share) == pytest.approx(1e3 * step_on_gpus(exact), abs=2.5)


def test_gpt2s_own_shapes_say_how_many_columns_a_share_holds():
    assert thin_share(2) == pytest.approx(0.0045, abs=5e-5)
    assert thin_share(3) - thin_share(2) == pytest.approx(0.00176, abs=5e-6)  # a column more
    assert within(share_left(2)) == {"density": 0.0041, "r": 18}
    assert within(share_left(22))["r"] == 2
    assert within(share_left(23))["r"] == 1 == within(1e-6)["r"]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"method": "top k"}, "method must be one of"),
        ({"method": "top-k", "density": 0}, "density must be"),
        ({"method": "top-k", "density": 2}, "density must be at most 1, not 2"),
        ({"method": "PowerSGD", "r": 0}, "r must be a whole number of at least 1, not 0"),
        ({"method": "top-k", "every": 2}, "every > 1 goes with 'whole gradients', not with 'top-k'"),
        ({"method": "whole gradients", "every": 0}, "every must be a whole number of at least 1, not 0"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_in_one_line(choice, said):
    with pytest.raises(Refused, match=said):
        method_on_gpus(**choice)
    with pytest.raises(Refused, match="coding"):
        race(6, -1)
    with pytest.raises(Refused, match="coding"):
        plot_saved(-1)
    with pytest.raises(Refused, match="coding"):
        step_with(0.1, -1)
