"""Chapter 19: what 1 % gains where backward hides messages."""

from functools import partial

import pytest

from course_lib.chapters.coding_race import (
    PART,
    SENT,
    backward_with,
    faster_from,
    lines,
    link_up_to,
    plot_map,
    plot_step,
    plot_steps,
    race,
    who_is_first,
)
from course_lib.chapters.refused import Refused


def test_backward_hides_all_messages_but_the_last_until_they_queue():
    assert backward_with(6).makespan == 106
    assert backward_with(12).makespan == 10 + 10 * 12
    assert backward_with(0.6, 1.5).makespan == pytest.approx(115.6)


def test_coding_of_0_9_ms_takes_back_what_the_longest_hidden_message_saves():
    assert backward_with(PART * 10).makespan == 101
    assert backward_with(PART * 10, 0.9).makespan == pytest.approx(backward_with(10).makespan)


@pytest.mark.parametrize(("coding", "message"), [(0, 0), (0.24, 6), (0.8, 20), (5.7, 30), (50, 120.408)])
def test_one_percent_is_faster_from_the_message_on_that_bf16_ends_with_alike(coding, message):
    assert faster_from(coding) == pytest.approx(message, abs=1e-3)
    three = lines(faster_from(coding), coding)
    assert three["bf16"].makespan == pytest.approx(three["1 %"].makespan)
    assert three["bf16"].makespan <= three["whole gradients"].makespan


def test_bf16_is_first_until_its_own_messages_queue():
    assert "1 % is first above 30 ms, 160 ms" in plot_steps(5.7).alt
    assert "1 % is first above 6 ms, 103 ms" in plot_steps(0.24).alt


def test_pictures_say_what_is_seen():
    assert "115.6 long" in race(6, 1.5).alt
    assert "bf16: all sent after 103 ms" in race(6, 1.5).alt
    assert "1 %: all sent after 115.6 ms, 12.6 ms later" in race(6, 1.5).alt
    assert "1 %: all sent after 102.6 ms, 0.4 ms earlier" in race(6, 0.2).alt
    assert "1 %: all sent after 103 ms too" in race(6, 0.24).alt
    assert "106 ms, 100 of them backward" in plot_step(backward_with(6)).alt


@pytest.mark.parametrize("draw", [partial(race, 6), plot_steps])
def test_a_coding_that_cannot_be_is_refused_in_one_line(draw):
    with pytest.raises(Refused, match="coding"):
        draw(-1)


def test_more_steps_cost_a_part_of_every_step():
    message = faster_from(0.5, more=1.07)
    three = lines(message, 0.5)
    assert three["bf16"].makespan == pytest.approx(1.07 * three["1 %"].makespan)
    assert link_up_to(0.5, 1.07) == pytest.approx(SENT / 1e6 / message)
    assert link_up_to(0.5, 1.07) < link_up_to(0.5)


def test_the_map_says_up_to_which_link_one_percent_is_first():
    said = plot_map(489, "cpu", more=1.09).alt
    assert "no coding: up to 4.4 GB/s; 5 ms: up to 2.9 GB/s; your cpu, 489 ms: up to 0.081 GB/s" in said
    assert "your GPU, 0.05 ms" in plot_map(0.05, "GPU", more=1.0).alt


def test_a_link_of_the_learner_is_told_who_is_first():
    border = link_up_to(5, 1.09)
    said = who_is_first(0.99 * border, 5, 1.09).text
    assert said.startswith("1 % has the fastest step, and the fastest training.")
    said = who_is_first(1.01 * border, 5, 1.09).text
    assert said.startswith("1 % has the fastest step, but bf16 the fastest training.")
    with pytest.raises(Refused, match="link"):
        who_is_first(0, 5, 1.09)


def test_a_message_that_cannot_be_is_refused_in_one_line():
    with pytest.raises(Refused, match="message"):
        race(-1, 1)
