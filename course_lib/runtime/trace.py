"""Marks that a technique leaves in its own code, so that a recorder can draw when it did what.

Nothing is recorded, and next to nothing spent, unless ``course_lib.observe.ledgers.timeline`` listens: a technique
depends on these few lines, not on the recorder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, str, float, float], None]

_listener: Listener | None = None


def listen(listener: Listener | None) -> Listener | None:
    """Install ``listener(lane, name, start, end)`` (seconds of ``time.monotonic``); return the one before."""
    global _listener
    before, _listener = _listener, listener
    return before


def begin(lane: str, name: str) -> Callable[..., None]:
    """Start a span that another callback will end, such as a collective that runs in the background.

    Returns the function that ends it; its arguments are ignored, so that it can serve as a future's callback.
    """
    listener = _listener
    if listener is None:
        return lambda *_: None
    start = time.monotonic()
    return lambda *_: listener(lane, name, start, time.monotonic())


@contextmanager
def span(lane: str, name: str) -> Iterator[None]:
    """Mark the work done inside the ``with`` as one span on ``lane``."""
    end = begin(lane, name)
    try:
        yield
    finally:
        end()
