"""A rank that is slowed takes at least its factor of processor time, message by message, and is then as before."""

import time

import pytest

from course_lib.runtime import trace
from course_lib.runtime.slowed import between_messages, slowed


def compute(seconds):
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


def test_computing_takes_longer_and_messages_do_not():
    original, marks = trace.begin, []
    before = trace.listen(lambda lane, name, start, end: marks.append((lane, name, start, end)))
    try:
        start = time.monotonic()
        with slowed(5):
            compute(0.01)
            with trace.span("communication", "all-gather"):
                pass
            with trace.span("compute", "layer"):
                compute(0.01)
            last = time.monotonic()
        end = time.monotonic()
    finally:
        trace.listen(before)
    (_, first, sent, arrived), (_, second, *_) = marks
    assert (first, second) == ("all-gather", "layer")
    assert sent - start >= 0.05, "slept before the message"
    assert end - arrived >= 0.05, "and at the end"
    assert end > last
    assert trace.begin is original


def test_what_is_computed_between_messages_is_told_without_the_messages():
    stretches = []
    with between_messages(lambda computed, passed: stretches.append((computed, passed))):
        compute(0.01)
        with trace.span("communication", "all-gather"):
            compute(0.05)
        with trace.span("compute", "layer"):
            compute(0.02)
    (first, _), (second, passed) = stretches
    assert 0.01 <= first < 0.05
    assert 0.02 <= second < 0.05
    assert passed >= second


def test_what_raises_inside_leaves_nothing_behind():
    original = trace.begin
    with pytest.raises(KeyError), slowed(2):
        raise KeyError
    assert trace.begin is original


@pytest.mark.parametrize("factor", [0.5, 0, -1, float("nan"), float("inf"), "3", True, None])
def test_factors_that_make_no_sense_are_refused(factor):
    with pytest.raises(ValueError, match="factor must be a number of at least 1, not"), slowed(factor):
        pass
