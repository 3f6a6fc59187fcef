"""A process for answers: in a copy of the course, within limits, and nothing of it is left at the end.

This protects against accidents: an endless loop, all the memory there is, ``os._exit``, a file of the course written
over. Whoever wants to cheat reads the solutions in the next folder.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import psutil

from course_lib.grading import COURSE_TIMEOUT
from course_lib.notebooks.places import course_root
from course_lib.processes.descendants import end_marked

MARK = "COURSE_GRADING"  # in the environment of every process of a run, however far it has moved away
GRACE = 5.0  # seconds for what was interrupted to say where it was
LOOK = 0.5  # seconds between two looks at the memory
HOME = Path(__file__).resolve().parents[2]
RUN = "from course_lib.grading.runner import main; main()"
SAID = {"course": "the course's own cells", "answer": "the answer", "check": "the check"}


class Verdict(NamedTuple):
    """What became of one answer: a status of ``results.Result``, what to say, and the facts that hold."""

    status: str
    message: str
    facts: tuple[str, ...] = ()


class Limits(NamedTuple):
    """Seconds for an answer or a check; the time at which all must be done; bytes of memory."""

    cell: float
    deadline: float
    memory: int


def run(
    work: list[dict[str, Any]], limits: Limits, on_begin: Callable[[str], None]
) -> tuple[dict[str, Verdict], bool]:
    """Judge answers until one hangs for good, ends the process or needs too much memory.

    Args:
        work: for each answer what ``runner.judged`` takes; at least one.
        on_begin: called with an exercise when it begins.

    Returns:
        Verdicts by exercise, at least one of them, and whether there was time enough.
    """
    mark, folder, process = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="grade-")), None
    found: dict[str, Verdict] = {}
    at, step, begun, late = work[0]["exercise"], "course", False, False
    try:
        _copy_course(folder)
        process, lines = _start(folder, mark, work)
        while len(found) < len(work):
            limit = COURSE_TIMEOUT if step == "course" else limits.cell
            took = f"{SAID[step]} took longer than {limit:g} s"
            busy = "; if other programs keep this computer busy, grade again without them"
            until = min(time.monotonic() + (GRACE if late else limit), limits.deadline)
            try:
                line = _next(lines, process, until, limits.memory)
            except MemoryError:
                found[at] = Verdict("error", f"{SAID[step]} needs more memory than there is to spare")
                break
            except TimeoutError:
                if time.monotonic() >= limits.deadline:
                    return found, False
                if late:  # nothing interrupts it
                    found[at] = Verdict("timeout", took + busy)
                    break
                late = True
                with suppress(OSError, ValueError):  # gone meanwhile; Windows has no such signal
                    process.send_signal(signal.SIGINT)
                continue
            if not line:
                how = f"the process ended in {SAID[step]}: by os._exit, or a crash?"
                if not begun:
                    words = (folder / "stderr").read_text(errors="replace").split("\n")
                    how = f"grading did not start ({next(filter(None, reversed(words)), 'without a word')})"
                found[at] = Verdict("error", how)
                break
            at, what, *verdict = json.loads(line)
            begun = True
            if not verdict:
                step = what
                on_begin(at)
            elif late:
                where = f", and was then {verdict[0]}" if what == "timeout" and verdict[0] else ""
                found[at] = Verdict("timeout", took + where + busy)
            else:
                found[at] = Verdict(what, verdict[0], tuple(verdict[1]))
            late = False
        return found, True
    finally:
        end_marked(MARK, mark)
        if process is not None:
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _copy_course(folder: Path) -> None:
    """What an answer writes over is a copy: the course's files stay as they are, whoever edits them meanwhile."""
    root = course_root()
    homes = {"course_lib": HOME, "simulator": HOME, "solutions": root, "exercises/checks": root}
    for name, home in homes.items():
        if (home / name).is_dir():
            shutil.copytree(home / name, folder / name)


def _start(
    folder: Path, mark: str, work: list[dict[str, Any]]
) -> tuple[subprocess.Popen[str], queue.SimpleQueue[str]]:
    (folder / "tmp").mkdir()
    given = {name: value for name, value in os.environ.items() if not name.startswith(("JPY_", "COV_"))}
    given |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder / "tmp"))
    given |= {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [given.get("PYTHONPATH")])])}
    given |= {MARK: mark, "MPLBACKEND": "agg", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    with (folder / "stderr").open("wb") as words:  # Ctrl-C is ours to handle: it gets a session of its own
        process = subprocess.Popen(
            [sys.executable, "-c", RUN], cwd=folder, env=given, stderr=words, start_new_session=True, **pipes
        )
    stdin, stdout = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
    with suppress(OSError):  # it did not start, and its last words are read below
        print(json.dumps(work), file=stdin, flush=True)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    return process, lines


def _next(lines: queue.SimpleQueue[str], process: subprocess.Popen[str], until: float, memory: int) -> str:
    """The next line; an empty one when the process has ended.

    Raises:
        TimeoutError: none came.
        MemoryError: the process and what it started hold more than ``memory`` bytes.
    """
    while True:
        with suppress(queue.Empty):
            return lines.get(timeout=max(0.0, min(LOOK, until - time.monotonic())))
        if time.monotonic() >= until:
            raise TimeoutError
        held = 0
        with suppress(psutil.Error):
            parent = psutil.Process(process.pid)
            for each in (parent, *parent.children(recursive=True)):
                held += each.memory_info().rss
        if held > memory:
            raise MemoryError
