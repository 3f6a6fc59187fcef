"""Ctrl-C at a bad moment: between the start of a process and the line that notes it, or while ranks are ended."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Deliver a Ctrl-C (JupyterLab's Stop button sends the same signal) only when the block is done."""
    if threading.current_thread() is not threading.main_thread():  # other threads are never interrupted
        yield
        return
    arrived: list[tuple] = []
    before = signal.signal(signal.SIGINT, lambda *args: arrived.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)
    if arrived and callable(before):
        before(*arrived[0])
