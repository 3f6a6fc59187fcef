"""Runs one notebook in a process of its own and tells, line by line, how each cell fared.

``sandbox.py`` starts it: ``python -m course_lib.grading.runner NOTEBOOK [FOLDER …]``. Events are JSON lines on what was
stdout at the start; the kernel inherits a closed door in its place, so that no answer can write events.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
import psutil
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from course_lib.grading import landlock

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
LONGEST = 20_000  # characters of a message or an output that are passed on
GRACE = 5  # seconds for an interrupted cell to end

_FRAME = re.compile(r"Cell In\[\d+\], line (\d+).*?\n-+> \1 ([^\n]*)", re.DOTALL)
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


class ThisPython(KernelSpecManager):
    """A kernel of this very Python: the one called ``python3`` at home may be another environment's."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


class Teller:
    """Before each cell, what begins; after it, the outcome and what the cell said."""

    def __init__(self, notebook: NotebookNode, folder: str, channel: int) -> None:
        self.channel, self.cell, self.timed_out = channel, -1, False
        self.kernel = AsyncKernelManager(kernel_spec_manager=ThisPython())
        self.client = NotebookClient(
            notebook,
            km=self.kernel,
            resources={"metadata": {"path": folder}},
            allow_errors=True,
            store_widget_state=False,
            record_timing=False,
            iopub_timeout=60,
            timeout_func=lambda cell: cell.metadata["course"]["timeout"] + GRACE,
            on_cell_start=self.begin,
            on_cell_execute=self.watch,
            on_cell_executed=self.end,
        )

    def run(self) -> None:
        """All cells, or those up to the one that ends the kernel or cannot be interrupted."""
        try:
            self.client.execute()
        except DeadKernelError:
            self.tell_end(died=True)
        except CellTimeoutError:
            self.tell_end()

    def tell(self, **event: Any) -> None:
        os.write(self.channel, (json.dumps(event) + "\n").encode())

    def begin(self, cell: NotebookNode, cell_index: int) -> None:
        self.cell, self.timed_out = cell_index, False
        self.tell(event="begin", cell=cell_index)

    def watch(self, cell: NotebookNode, cell_index: int) -> None:
        """nbclient gives up when the time is over; interrupted before, the cell says where it was."""
        seconds = cell.metadata["course"]["timeout"]
        self.timer = asyncio.get_running_loop().call_later(seconds, self.interrupt)

    def interrupt(self) -> None:
        self.timed_out = True
        self.interrupting = asyncio.ensure_future(self.kernel.interrupt_kernel())

    def end(self, cell: NotebookNode, cell_index: int, execute_reply: dict[str, Any]) -> None:
        self.timer.cancel()
        error = next((out for out in cell.outputs if out["output_type"] == "error"), {})
        stdout = "".join(out["text"] for out in cell.outputs if out.get("name") == "stdout")
        self.tell_end(
            passed=execute_reply["content"]["status"] == "ok",
            line=interrupted_at(error.get("traceback", ())),
            ename=error.get("ename", ""),
            evalue=str(error.get("evalue", ""))[:LONGEST],
            stdout=stdout[:LONGEST],
        )

    def tell_end(self, **outcome: Any) -> None:
        nothing = {"passed": False, "died": False, "line": ("", ""), "ename": "", "evalue": "", "stdout": ""}
        self.tell(event="end", cell=self.cell, timed_out=self.timed_out, **(nothing | outcome))


def run(notebook: Path, channel: int) -> None:
    """Run the notebook; once more where a port, free when it was chosen, was taken when the kernel opened it."""
    for last in (False, True):
        teller = Teller(nbformat.read(notebook, as_version=4), str(notebook.parent), channel)
        try:
            return teller.run()
        except RuntimeError:
            if last or teller.cell >= 0:
                raise


def interrupted_at(traceback: Sequence[str]) -> tuple[str, str]:
    """(number, text) of the line of a cell that ran when the kernel was interrupted; empty where none is known."""
    found = _FRAME.findall(_COLOURS.sub("", "\n".join(traceback)))
    return (found[-1][0], found[-1][1].strip()) if found else ("", "")


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


def main(notebook: str, *kept: str) -> None:
    """Run the cells, where nothing can be written in ``kept``, at home or in the environment."""
    channel = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    adopt_orphans()
    if kept:
        # What an answer leaves there would outlive the grading: a .pth file, say, runs in every later Python.
        also = (os.path.expanduser("~"), sys.prefix, sys.base_prefix)
        landlock.keep(map(Path, (*kept, *also)), writable=Path(notebook).parent)
    leave_with_parent()
    run(Path(notebook), channel)
    end_descendants()


if __name__ == "__main__":
    main(*sys.argv[1:])
