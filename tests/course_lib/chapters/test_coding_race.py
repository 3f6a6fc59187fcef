"""Chapter 19's last pictures: from which message on 1 % is ahead, and what the eight machines of chapter 05 gain."""

import pytest

from course_lib.chapters.coding_race import PART, backward_with, plot_turning_point, race, turning_point
from course_lib.chapters.ddp_step import BATCH, gpt2_step
from course_lib.chapters.eight_machines import (
    attempt,
    method_on_gpus,
    reaching,
    share_of,
    step_on_gpus,
    times_one,
)
from course_lib.chapters.refused import Refused


def test_backward_hides_all_messages_but_the_last_until_they_queue():
    assert backward_with(6).makespan == 106
    assert backward_with(12).makespan == 10 + 10 * 12
    assert backward_with(0.6, 1.5).makespan == pytest.approx(115.6)


@pytest.mark.parametrize(("coding", "turn"), [(1.5, 105 / 9.9), (0.5, 5 / 0.9), (0.0, 0.0)])
def test_one_percent_turns_ahead_where_both_are_sent_at_the_same_time(coding, turn):
    assert turning_point(coding) == pytest.approx(turn, abs=1e-5)
    both = backward_with(turn), backward_with(PART * turn, coding)
    assert both[0].makespan == pytest.approx(both[1].makespan)


def test_pictures_say_what_is_seen():
    assert "10.6 ms" in plot_turning_point(1.5).alt
    assert "115.6 long" in race(6, 1.5).alt


def test_the_eight_machines_are_those_of_chapter_05():
    whole = method_on_gpus("whole gradients")
    assert 1e3 * step_on_gpus(whole) == pytest.approx(gpt2_step(8, BATCH).makespan, rel=1e-3)
    percent = method_on_gpus("top-k", coding=15)
    assert percent.sent == pytest.approx(0.08 * whole.sent, rel=1e-3)
    assert times_one(whole) < 1 < times_one(percent) < 1.5


def test_an_attempt_says_how_it_went_and_each_method_can_reach_it(capsys):
    lines = attempt("top-k")
    assert [round(seconds(1.25e9), 3) for seconds in lines.values()] == [0.721, 0.087, 0.122, 0.041]
    assert len(attempt("whole gradients")) == 3
    attempt("PowerSGD", r=4)
    attempt("whole gradients", every=40)
    said = [line.split(": ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert said == ["not 3 times yet", "not 3 times yet", "3 times reached", "3 times reached"]
    top_k, power_sgd, rarely = reaching()
    assert power_sgd[:2] == ("PowerSGD", "6 columns")
    assert share_of(**rarely[2]) == 1
    assert share_of(**top_k[2]) == pytest.approx(8 * 0.0017, rel=1e-3)
    assert 0.01 < share_of(**power_sgd[2]) < 0.013
    assert times_one(method_on_gpus("PowerSGD", r=6, coding=15)) > 3
    assert times_one(method_on_gpus("PowerSGD", r=7, coding=15)) < 3


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
        attempt(**choice)
    with pytest.raises(Refused, match="coding"):
        race(6, -1)
