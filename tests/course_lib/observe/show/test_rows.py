"""One rank's timeline with all-gathers and reduce-scatters in rows of their own."""

import pytest

from course_lib.observe.show.rows import compute_rows, rows_of_rank
from simulator.ledgers.timeline import Span, Timeline

TIMELINE = Timeline(
    [
        Span(0, "compute", "F 0", 2.0, 3.0),
        Span(0, "communication", "all-gather blocks.1", 2.5, 3.5),
        Span(0, "communication", "reduce-scatter blocks.0", 3.0, 4.0),
        Span(1, "compute", "F 0", 2.0, 9.0),
    ]
)


def test_messages_of_two_kinds_have_two_rows_and_times_are_milliseconds_from_the_start():
    assert list(rows_of_rank(TIMELINE).spans) == [
        Span(0, "compute", "F 0", 0.0, 1000.0),
        Span(0, "gather", "all-gather block 1", 500.0, 1500.0),
        Span(0, "reduce", "reduce-scatter block 0", 1000.0, 2000.0),
    ]
    assert [span.end for span in rows_of_rank(TIMELINE, 1).spans] == [7000.0]


def test_a_rank_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="rank 2 is not in the timeline; its ranks are \\[0, 1\\]"):
        rows_of_rank(TIMELINE, 2)


def test_what_all_ranks_compute_begins_at_zero_milliseconds_without_their_messages():
    assert list(compute_rows(TIMELINE).spans) == [
        Span(0, "compute", "F 0", 0.0, 1000.0),
        Span(1, "compute", "F 0", 0.0, 7000.0),
    ]
    assert not compute_rows(Timeline([])).spans
