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
from typing import Any, NamedTuple

import psutil

from course_lib.grading import COURSE_TIMEOUT
from course_lib.notebooks.places import course_root
from course_lib.runtime import descendants

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
        work: as ``answers.to_judge`` gives it; at least one.
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
            seconds = GRACE if late else COURSE_TIMEOUT if step == "course" else limits.cell
            try:
                line = _next(lines, process, min(seconds, limits.deadline - time.monotonic()), limits.memory)
            except MemoryError:
                found[at] = Verdict("error", f"{SAID[step]} needs more memory than there is to spare")
                break
            except TimeoutError:
                if time.monotonic() >= limits.deadline:
                    return found, False
                if late:  # nothing interrupts it
                    found[at] = Verdict("timeout", _took_longer(step, limits))
                    break
                late = True
                with suppress(OSError, ValueError):  # gone meanwhile; Windows has no such signal
                    process.send_signal(signal.SIGINT)
                continue
            if not line:
                how = f"the process ended in {SAID[step]}: by os._exit, or a crash?"
                found[at] = Verdict("error", how if begun else _last_words(folder))
                break
            event, begun = json.loads(line), True
            at = event["exercise"]
            if "step" in event:
                step = event["step"]
                on_begin(at)
            else:
                message = _took_longer(step, limits, event["message"]) if late else event["message"]
                found[at] = Verdict("timeout" if late else event["status"], message, tuple(event["facts"]))
                step = "course"
            late = False
        return found, True
    finally:
        descendants.end_marked(MARK, mark)
        if process is not None:
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _took_longer(step: str, limits: Limits, where: str = "") -> str:
    seconds = COURSE_TIMEOUT if step == "course" else limits.cell
    late = f"{SAID[step]} took longer than {seconds:g} s" + (f", and was then {where}" if where else "")
    return f"{late}; if other programs keep this computer busy, grade again without them"


def _copy_course(folder: Path) -> None:
    """What an answer writes over is a copy: the course's files stay as they are, whoever edits them meanwhile."""
    for root, names in (
        (HOME, ("course_lib", "simulator")),
        (course_root(), ("solutions", "exercises/checks")),
    ):
        for name in names:
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name)


def _start(
    folder: Path, mark: str, work: list[dict[str, Any]]
) -> tuple[subprocess.Popen, queue.Queue[bytes]]:
    (folder / "tmp").mkdir()
    given = {name: value for name, value in os.environ.items() if not name.startswith(("JPY_", "COV_"))}
    given |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder / "tmp"))
    given |= {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [given.get("PYTHONPATH")])])}
    given |= {MARK: mark, "MPLBACKEND": "agg", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    pipe, command = subprocess.PIPE, [sys.executable, "-c", RUN]
    with (folder / "stderr").open("wb") as words:  # Ctrl-C is ours to handle: it gets a session of its own
        process = subprocess.Popen(
            command, cwd=folder, env=given, stdin=pipe, stdout=pipe, stderr=words, start_new_session=True
        )
    assert process.stdin is not None
    with suppress(OSError):  # it did not start, and its last words are read below
        process.stdin.write(json.dumps(work).encode() + b"\n")
        process.stdin.flush()
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(process, lines), daemon=True).start()
    return process, lines


def _read(process: subprocess.Popen, lines: queue.Queue[bytes]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(b"")


def _next(lines: queue.Queue[bytes], process: subprocess.Popen, seconds: float, memory: int) -> bytes:
    """The next line; an empty one when the process has ended.

    Raises:
        TimeoutError: none came.
        MemoryError: the process and what it started hold more than ``memory`` bytes.
    """
    until = time.monotonic() + seconds
    while True:
        with suppress(queue.Empty):
            return lines.get(timeout=max(0.0, min(LOOK, until - time.monotonic())))
        if time.monotonic() >= until:
            raise TimeoutError
        held = 0
        with suppress(psutil.Error):
            parent = psutil.Process(process.pid)
            for each in (parent, *parent.children(recursive=True)):
                with suppress(psutil.Error):
                    held += each.memory_info().rss
        if held > memory:
            raise MemoryError


def _last_words(folder: Path) -> str:
    words = (folder / "stderr").read_text(errors="replace").strip().splitlines()
    return f"grading did not start ({words[-1] if words else 'without a word'})"
