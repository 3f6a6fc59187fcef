"""All that a process has started, wherever it went: into a session of its own, or to another parent (a daemon).

On Linux a rank adopts what loses its parent below it (``PR_SET_CHILD_SUBREAPER``), so while the rank lives nothing gets
out of its sight. When the rank is gone, a mark in the environment is left, by which what it started is found: all that
was given the rank's environment, or is a fork of the rank. What was started with an empty environment, in a session of
its own, by a rank that was killed, is not found. On macOS nothing is adopted, and the mark alone has to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time

import psutil

MARK = "COURSE_LIB_RANKS_OF"  # the variable
UNMARKED = "0" * 32  # its value in the fork server, as long as a mark
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_WITHIN = 10.0  # seconds: what cannot be killed so long is left


def adopt_orphans() -> None:
    """On Linux, become the parent of whatever descendant loses its own."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def mark_this_process(mark: str) -> None:
    """Write the mark where the system reads this process's environment: into memory that every fork copies.

    The environment that the fork server was started with must hold the variable. ``os.environ`` is another copy.
    """
    if not hasattr(os, "fork"):
        return
    getenv = ctypes.CDLL(None).getenv
    getenv.argtypes, getenv.restype = (ctypes.c_char_p,), ctypes.c_void_p
    if place := getenv(MARK.encode()):
        ctypes.memmove(place, mark.encode(), min(len(mark), len(ctypes.string_at(place))))


def end_descendants() -> None:
    """Kill all that was started from here, and what that starts meanwhile."""
    until = time.monotonic() + _WITHIN
    while time.monotonic() < until:
        found = [p for p in psutil.Process().children(recursive=True) if is_running(p)]
        if not found:
            return
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)


def end_marked(name: str, mark: str) -> None:
    """Kill all processes in whose environment the variable ``name`` is ``mark``, and what they start meanwhile."""
    until = time.monotonic() + _WITHIN
    while (found := marked(name, mark)) and time.monotonic() < until:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.01)


def marked(name: str, mark: str) -> list[psutil.Process]:
    """All processes but this one that run and have the mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # another user's, or gone meanwhile
            if process.pid != os.getpid() and process.environ().get(name) == mark and is_running(process):
                found.append(process)
    return found


def is_running(process: psutil.Process | int) -> bool:
    """Whether there is such a process, it has not ended, and no other has its number."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False
