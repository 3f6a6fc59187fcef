"""Shows that a long run is alive: how long it has run, and what each rank does.

In JupyterLab and Notebook the lines stand below the running cell, drawn by a widget model without a view
(``progress.js``), so they are no output: the notebook never holds them. In a terminal it is one line on stderr,
rewritten in place. Both are gone when the run ends. Where nobody looks on (nbval, nbclient, pytest, a log file)
nothing is sent.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from course_lib.runtime.report import name_ranks

SHOW_AFTER = 2.0  # seconds
EVERY = 0.5  # seconds between two updates

_terminal_line = False  # whether the last line of the terminal is ours


class Progress:
    """To be used in a ``with`` around the wait; ``show`` is called about twice a second."""

    def __init__(self, members: list[Any], silent: bool) -> None:
        self.members = members
        self.began = self.shown = time.monotonic()
        self.view: _Notebook | _Terminal | None = None if silent else _choose_view()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.view is not None:
            self.view.remove()

    def show(self) -> None:
        now = time.monotonic()
        if self.view is None or now - self.began < SHOW_AFTER or now - self.shown < EVERY:
            return
        self.shown = now
        self.view.show(f"{now - self.began:.0f} s", describe(self.members))


def describe(members: list[Any]) -> list[str]:
    """One line for all ranks that do the same, such as ``ranks 0, 1: wait in all_reduce(float32[4])``."""
    does: dict[str, list[int]] = {}
    for process in members:
        does.setdefault(_activity(process), []).append(process.rank)
    return [f"{name_ranks(ranks)}: {activity}" for activity, ranks in does.items()]


def _activity(process: Any) -> str:
    where = process.where
    if process.raised:
        return f"raised {process.raised.kind}"
    if process.returned is not None:
        return "done"
    if where is None:
        return "runs"
    return f"in {where.call}({where.detail}), at {where.line}" if where.call else f"at {where.line}"


def _choose_view() -> _Notebook | _Terminal | None:
    if threading.current_thread() is not threading.main_thread():
        return None
    if _in_a_browser():
        return _Notebook()
    if sys.stderr is not None and sys.stderr.isatty() and "PYTEST_CURRENT_TEST" not in os.environ:
        return _Terminal()
    return None


def _in_a_browser() -> bool:
    """Whether a notebook's page asked for the running cell: it sends the cell's id, nbclient and nbval do not."""
    with contextlib.suppress(Exception):  # no IPython, or a terminal's
        return "cellId" in get_ipython().kernel.get_parent("shell")["metadata"]  # noqa: F821  # pyright: ignore
    return False


class _Terminal:
    def show(self, elapsed: str, lines: list[str]) -> None:
        global _terminal_line
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r\x1b[K{' · '.join([elapsed, *lines])[:width]}")
        sys.stderr.flush()
        _terminal_line = True

    def remove(self) -> None:
        erase_terminal_line()


def erase_terminal_line() -> None:
    """Erase the progress line, if it is there; called before a rank's output is printed."""
    global _terminal_line
    if _terminal_line:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
        _terminal_line = False


class _Notebook:
    """A model in the page that draws itself below the running cell. It is made when there is something to show."""

    def __init__(self) -> None:
        self.model: Any = None
        self.failed = False

    def show(self, elapsed: str, lines: list[str]) -> None:
        with contextlib.suppress(
            Exception
        ):  # progress is never worth a run: no anywidget, a closed connection
            if self.model is None and not self.failed:
                self.failed = True
                self.model = _new_model()
                self.failed = False
            if self.model is not None:
                self.model.text = "\n".join([f"running for {elapsed}", *lines])

    def remove(self) -> None:
        if self.model is not None:
            with contextlib.suppress(Exception):
                self.model.close()


def _new_model() -> Any:
    import anywidget  # half a second, and not needed outside of a notebook
    import traitlets

    class RunningRanks(anywidget.AnyWidget):
        _esm = Path(__file__).with_name("progress.js")
        text = traitlets.Unicode().tag(sync=True)

    return RunningRanks()
