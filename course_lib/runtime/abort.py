"""Tells the launcher which collective a rank was in when C++ code aborts its process.

Gloo aborts a rank that receives more bytes than it expects, as when two ranks call an all-reduce with tensors of
different sizes. No exception reaches Python, so the launcher would only learn that signal 6 ended the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable

from course_lib.runtime.stack_inspection import whereabouts

_handlers: list = []  # C code calls them: they must not be freed


def tell_on_abort(tell: Callable, main_thread: int) -> None:
    """Send ``("at", Whereabouts)`` of the thread ``main_thread`` before an abort ends this process.

    A handler of Python's ``signal`` module would run after the C++ code has returned, which it never does here. So
    this one is installed in C, and runs in the thread that aborts.
    """
    if os.name == "nt":
        return

    def handler(_: int) -> None:
        signal.alarm(2)  # should the handler not end, because the abort came from inside the allocator
        with contextlib.suppress(Exception):
            tell("at", whereabouts(main_thread))

    _handlers.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(handler))
    c_signal = ctypes.CDLL(None).signal
    c_signal.argtypes, c_signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    c_signal(signal.SIGABRT, ctypes.cast(_handlers[-1], ctypes.c_void_p))
