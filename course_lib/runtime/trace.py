"""Calls that mark in a technique's code when a piece of work begins and ends, so that it can be drawn.

``course_lib.observe.ledgers.timeline`` records the marks. While it does not record, a mark costs one comparison. A
technique imports only this file and never the recorder.

A call that starts work on a GPU returns before the work is done. So on a GPU a span begins and ends with CUDA
events, which the GPU reaches in the order of its work; ``in_seconds`` turns them into times at the end of the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

Moment = float | torch.cuda.Event  # seconds of time.monotonic, or an event of the GPU
Listener = Callable[[str, str, Moment, Moment], None]
WAITING = "waiting"  # the lane of spans in which a rank does nothing

_listener: Listener | None = None


def listen(listener: Listener | None) -> Listener | None:
    """Call ``listener(lane, name, start, end)`` for every span from now on; None: for none. Returns the listener that
    was installed until now."""
    global _listener
    before, _listener = _listener, listener
    return before


def now() -> Moment:
    """This moment. On a GPU it is the moment at which the work given to the current stream so far is done."""
    if not torch.cuda.is_initialized():
        return time.monotonic()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def in_seconds(moments: Sequence[Moment]) -> list[float]:
    """The moments in seconds of ``time.monotonic``. Waits until the GPU has reached them."""
    known = [moment for moment in moments if isinstance(moment, float)]
    if len(known) == len(moments):
        return known
    torch.cuda.synchronize()
    _, seconds, reference = min((_reference() for _ in range(5)), key=lambda found: found[0])
    return [m if isinstance(m, int | float) else seconds - m.elapsed_time(reference) / 1000 for m in moments]


def _reference() -> tuple[float, float, torch.cuda.Event]:
    """An event that the idle GPU reaches at once: by how many seconds its time may be wrong, that time, the event.

    This process may have to wait for a processor in between; then the time is known badly, and another is better.
    """
    before = time.monotonic()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    event.synchronize()
    after = time.monotonic()
    return (after - before) / 2, (before + after) / 2, event


def begin(lane: str, name: str) -> Callable[..., None]:
    """Start a span that another callback will end, such as a collective that runs in the background.

    Returns the function that ends it. It may serve as the callback of a collective's future: then the span ends
    when the data has arrived.
    """
    listener = _listener
    if listener is None:
        return lambda *_: None
    start = now()
    return lambda *future: listener(lane, name, start, _arrival() if future else now())


def _arrival() -> Moment:
    """The moment at which a collective is done, in the callback of its future.

    NCCL calls back at once, on a stream of its own which waits for the collective's kernel, so the moment is an event
    on that stream. Gloo calls back when the data has arrived, in a thread that uses the default stream, so the moment
    is now.
    """
    if torch.cuda.is_initialized() and torch.cuda.current_stream() != torch.cuda.default_stream():
        return now()
    return time.monotonic()


def waiting() -> AbstractContextManager[None]:
    """Mark that this rank waits for a message inside the ``with``.

    A recorder cuts the wait out of the span of computing around it, such as that of a module whose hooks wait.
    """
    return span(WAITING, "for a message")


@contextmanager
def span(lane: str, name: str) -> Iterator[None]:
    """Mark the work done inside the ``with`` as one span on ``lane``."""
    end = begin(lane, name)
    try:
        yield
    finally:
        end()
