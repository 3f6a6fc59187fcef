"""A rank that is slower on purpose, so that one computer can stand for devices of unequal speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from course_lib.runtime import trace


@contextmanager
def slowed(factor: float) -> Iterator[None]:
    """Inside the ``with``, what this rank computes between two messages takes ``factor`` times its processor time.

    Before each message, and at the end, the rank sleeps until that time is over. A sleeping rank needs no core. With
    factors such as 4 and 12 two ranks keep the ratio of 1 to 3 on a busy computer, too: what they wait for a processor
    is a part of what they would have slept. Messages are as fast as ever.

    It notices the messages that are marked with ``trace`` on the lane ``"communication"``, as the course's are, and
    the processor time of the thread that calls it. So it is for the CPU, and for one thread (``OMP_NUM_THREADS=1``).

    Raises:
        ValueError: the factor is not a number of at least 1.
    """
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not 1 <= factor < float("inf"):
        raise ValueError(f"factor must be a number of at least 1, not {factor!r}")
    with between_messages(lambda computed, passed: time.sleep(max(0.0, factor * computed - passed))):
        yield


@contextmanager
def between_messages(computed: Callable[[float, float], None]) -> Iterator[None]:
    """Inside the ``with``, ``computed(processor seconds, seconds)`` is called before each message, and at the end.

    The first number is the processor time of what this rank has computed since the last message, and the second the
    time that has passed meanwhile. Messages and threads are those of ``slowed``.
    """
    began = [time.thread_time(), time.monotonic()]  # processor time and wall time when computing went on

    def compute_again() -> None:
        began[:] = time.thread_time(), time.monotonic()

    def pause() -> None:
        computed(time.thread_time() - began[0], time.monotonic() - began[1])
        compute_again()

    def begin(lane: str, name: str) -> Callable[..., None]:
        if lane != "communication":
            return original(lane, name)
        pause()
        end = original(lane, name)

        def ended(*future: object) -> None:
            end(*future)
            if not future:  # with a future, it is another thread that comes here
                compute_again()

        return ended

    original, trace.begin = trace.begin, begin
    try:
        yield
        pause()
    finally:
        trace.begin = original
