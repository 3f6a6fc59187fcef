"""Chapter 19: what 1 % gains where messages are hidden or exposed, and what the eight machines of chapter 05 gain."""

import pytest

from course_lib.chapters.coding_race import PART, backward_with, plot_two_cases, race, time_coding
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


def test_coding_of_0_9_ms_takes_back_what_the_longest_hidden_message_saves():
    assert backward_with(PART * 10).makespan == 101
    assert backward_with(PART * 10, 0.9).makespan == pytest.approx(backward_with(10).makespan)


def test_coding_takes_at_least_the_reading_and_the_writing(capsys):
    time_coding()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "coding of a bucket: at least 0.10 ms on an A100"
    assert said[1].startswith("the choice alone: ")


def test_pictures_say_what_is_seen():
    assert "115.6 long" in race(6, 1.5).alt
    said = plot_two_cases(percent=True).alt
    assert "0.6 times the computing: whole gradients 106.0 ms, 1 %, no coding 100.6 ms" in said
    assert "whole gradients 721.3 ms, 1 %, no coding 71.7" in said
    assert "1 %" not in plot_two_cases().alt


def test_the_eight_machines_are_those_of_chapter_05():
    whole = method_on_gpus("whole gradients")
    assert 1e3 * step_on_gpus(whole) == pytest.approx(gpt2_step(8, BATCH).makespan, rel=1e-3)
    percent = method_on_gpus("top-k", coding=15)
    assert percent.sent == pytest.approx(0.08 * whole.sent, rel=1e-3)
    assert times_one(whole) < 1 < times_one(percent) < 1.5


def test_an_attempt_says_how_it_went_and_each_method_can_reach_it(capsys):
    lines = attempt("top-k", coding=15)
    assert [round(seconds(1.25e9), 3) for seconds in lines.values()] == [0.721, 0.087, 0.122, 0.041]
    assert len(attempt("whole gradients")) == 3
    attempt("PowerSGD", r=4, coding=15)
    attempt("whole gradients", every=40)
    said = [line.split(": ")[-1] for line in capsys.readouterr().out.splitlines()]
    assert said == ["not 3 times yet", "not 3 times yet", "3 times reached", "3 times reached"]
    top_k, power_sgd, rarely = reaching(15)
    assert power_sgd[:2] == ("PowerSGD", "r = 6")
    assert share_of(**rarely[2]) == 1
    assert share_of(**top_k[2]) == pytest.approx(8 * 0.0017, rel=1e-3)
    assert 0.01 < share_of(**power_sgd[2]) < 0.013
    assert times_one(method_on_gpus("PowerSGD", r=6, coding=15)) > 3
    assert times_one(method_on_gpus("PowerSGD", r=7, coding=15)) < 3
    assert [setting for _, setting, _ in reaching(30)] == ["never", "never", rarely[1]]
    assert reaching(30)[0][2] == {}


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
