"""Runs nbval on one notebook in a process of its own and tells, line by line, how each cell fared.

``sandbox.py`` starts it: ``python -m course_lib.grading.runner NOTEBOOK [FOLDER …]``. Events are JSON lines on what was
stdout at the start; the kernel inherits a closed door in its place, so that no answer can write events.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from queue import Empty
from typing import Any

os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import nbval.plugin
import psutil
import pytest
from nbval.kernel import RunningKernel

from course_lib.grading import landlock

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
LONGEST = 20_000  # characters of a message or an output that are passed on


class KernelDied(RuntimeError):  # noqa: N818 - what happened
    """The kernel ended while it ran a cell."""


class WatchedKernel(RunningKernel):
    """nbval waits for a dead kernel until the cell's time is over; this one notices."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        """A port that was free when it was chosen may be taken when the kernel opens it: then another is started."""
        try:
            super().__init__(*args, **settings)
        except RuntimeError:
            super().__init__(*args, **settings)

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        deadline = time.monotonic() + (timeout or 600)
        while True:
            left = deadline - time.monotonic()
            try:
                return super().await_reply(msg_id, timeout=max(0.0, min(0.5, left)))
            except Empty:
                if not self.is_alive():
                    raise KernelDied("the kernel died") from None
                if left <= 0.5:
                    raise


_FRAME = re.compile(r"Cell In\[\d+\], line (\d+).*?\n-+> \1 ([^\n]*)", re.DOTALL)
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


def interrupted_at(error: BaseException | None) -> tuple[str, str]:
    """(number, text) of the line of a cell that ran when the kernel was interrupted; empty where none is known."""
    text = _COLOURS.sub("", getattr(error, "inner_traceback", None) or "")
    found = _FRAME.findall(text)
    return (found[-1][0], found[-1][1].strip()) if found else ("", "")


class Teller:
    """A pytest plugin: before each cell, what begins; after it, the outcome and what the cell said."""

    def __init__(self, channel: int) -> None:
        self.channel = channel

    def tell(self, **event: Any) -> None:
        os.write(self.channel, (json.dumps(event) + "\n").encode())

    def pytest_runtest_setup(self, item: Any) -> None:
        item.config.option.nbval_cell_timeout = item.cell.metadata["course"]["timeout"]
        self.tell(event="begin", cell=item.cell_num)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        report = yield
        if report.when == "call" or report.failed:
            outputs = item.test_outputs or []
            error = next((out for out in outputs if out["output_type"] == "error"), {})
            died = call.excinfo is not None and "ernel died" in str(call.excinfo.value)
            passed = report.when == "call" and report.passed and not hasattr(report, "wasxfail")
            stdout = "".join(out["text"] for out in outputs if out.get("name") == "stdout")
            self.tell(
                event="end",
                cell=item.cell_num,
                passed=passed,
                timed_out=bool(item.parent.timed_out),
                line=interrupted_at(call.excinfo and call.excinfo.value),
                died=died,
                ename=error.get("ename", ""),
                evalue=str(error.get("evalue", ""))[:LONGEST],
                stdout=stdout[:LONGEST],
                problem="" if call.excinfo is None else str(call.excinfo.value)[:LONGEST],
            )
        return report


def leave_with_parent() -> None:
    """End when the grader has ended, however that was: its end of our stdin closes."""

    def wait() -> None:
        os.read(0, 1)
        end_descendants()
        os._exit(3)

    threading.Thread(target=wait, daemon=True).start()


def adopt_orphans() -> None:
    """On Linux, become the parent of whatever descendant loses its own: none can get out of sight."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """Kill all that was started from here, and what that starts meanwhile."""
    while found := [
        p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE
    ]:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def main(notebook: str, *kept: str) -> int:
    """Run the cells, where nothing can be written in ``kept``, at home or in the environment; 0 unless nbval failed."""
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    adopt_orphans()
    if kept:
        # What an answer leaves there would outlive the grading: a .pth file, say, runs in every later Python.
        also = (os.path.expanduser("~"), sys.prefix, sys.base_prefix)
        landlock.keep(map(Path, (*kept, *also)), writable=Path(notebook).parent)
    leave_with_parent()
    nbval.plugin.RunningKernel = WatchedKernel
    folder = os.path.dirname(notebook)
    options = [
        "-p",
        "nbval.plugin",
        "--nbval-lax",
        "--nbval-current-env",
        "-p",
        "no:cacheprovider",
        "--color=no",
    ]
    options += ["--rootdir", folder, "-c", os.path.join(folder, "pytest.ini")]
    code = pytest.main([*options, notebook], plugins=[Teller(channel)])
    end_descendants()
    return 0 if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
