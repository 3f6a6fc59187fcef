"""Chapter 19: what 1 % gains where backward hides messages."""

from functools import partial

import pytest

from course_lib.chapters.coding_race import (
    PART,
    backward_with,
    faster_from,
    plot_saved,
    plot_step,
    race,
    saved,
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
    assert "106 ms, 100 of them computing" in plot_step(backward_with(6)).alt


@pytest.mark.parametrize("draw", [partial(race, 6), plot_saved])
def test_a_coding_that_cannot_be_is_refused_in_one_line(draw):
    with pytest.raises(Refused, match="coding"):
        draw(-1)
