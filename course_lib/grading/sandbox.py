"""Run a notebook where it can do no harm: a folder of its own, limits, and nothing left behind."""

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
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbformat import NotebookNode

MARK = "COURSE_GRADING"  # in the environment of every process of a run, however far it has moved away
FOLDER = "grade-"  # the prefix of a run's folder; the grader's number follows
POLL = 0.2  # seconds

Event = dict[str, Any]


def run_notebook(
    notebook: NotebookNode,
    on_event: Callable[[Event], bool],
    time_limit: float,
    memory_limit: int | None = None,
    kept: Collection[Path] = (),
) -> str:
    """Run the cells, telling ``on_event`` as each begins and ends, until it has seen enough or a limit is hit.

    Args:
        notebook: its code cells carry ``metadata.course.timeout``, in seconds.
        on_event: gets ``runner.py``'s events; true ends the run.
        time_limit: seconds for all of it.
        memory_limit: bytes of resident memory of all its processes; by default four fifths of what is free now.
        kept: folders in which nothing can be written meanwhile; needs ``landlock``.

    Returns:
        ``"stopped"`` by ``on_event``, ``"time"`` or ``"memory"`` at a limit, ``"ended"`` when there are no more
        cells, and ``"broken: …"`` with the runner's last words when it did not work at all.
    """
    memory_limit = memory_limit or int(0.8 * psutil.virtual_memory().available)
    mark = uuid.uuid4().hex
    _remove_folders_of_killed()
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-"))
    process, seen = None, set()
    try:
        path = folder / "graded.ipynb"
        nbformat.write(notebook, path)
        with (folder / "stderr").open("wb") as words:
            process = subprocess.Popen(
                [sys.executable, "-m", "course_lib.grading.runner", str(path), *map(str, kept)],
                cwd=folder,
                env=_environment(folder, mark),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        reason = _follow(process, on_event, time.monotonic() + time_limit, memory_limit, seen)
        if reason == "ended" and process.wait() != 0:
            words = (folder / "stderr").read_text(errors="replace").strip().splitlines()
            reason = f"broken: {words[-1] if words else f'exit code {process.returncode}'}"
        return reason
    finally:
        with _undisturbed():
            _kill_all(mark, process, seen)
            shutil.rmtree(folder, ignore_errors=True)


def _remove_folders_of_killed() -> None:
    """A grader that was killed, by an answer, say, has left its folder; the folder's name tells its number."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*-*"):
        number = folder.name.removeprefix(FOLDER).partition("-")[0]
        if number.isdecimal() and not psutil.pid_exists(int(number)):
            shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path, mark: str) -> dict[str, str]:
    """The learner's environment, with every place where a kernel leaves files inside ``folder``."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JPY_", "COV_"))}
    folders = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "TRITON_CACHE_DIR")
    for name in (*folders, "TMPDIR", "TEMP", "TMP"):
        place = folder / ("t" if name in ("TMPDIR", "TEMP", "TMP") else name.lower())
        place.mkdir(exist_ok=True)
        environment[name] = str(place)
    return environment | {MARK: mark, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def _follow(
    process: subprocess.Popen,
    on_event: Callable[[Event], bool],
    deadline: float,
    memory_limit: int,
    seen: set[psutil.Process],
) -> str:
    lines: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=POLL)
        except queue.Empty:
            if time.monotonic() > deadline:
                return "time"
            family = _family(process.pid)
            seen.update(family)
            if _resident(family) > memory_limit:
                return "memory"
            continue
        if not line:
            return "ended"
        if on_event(json.loads(line)):
            return "stopped"


def _resident(processes: list[psutil.Process]) -> int:
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                yield process
        except (psutil.Error, OSError):  # another user's, or gone meanwhile
            continue


def _kill_all(mark: str, process: subprocess.Popen | None, seen: set[psutil.Process]) -> None:
    """End every process of the run: children, their orphans, and those started while we look.

    The runner goes last: on Linux it adopts whoever loses a parent, also what left its session and its environment.
    """
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        family = _family(process.pid) if process else []
        found = {each for each in {*family[1:], *_marked(mark), *seen} if _alive(each)}
        found -= set(family[:1])
        for each in found or family[:1]:
            with suppress(psutil.Error):
                each.kill()
        if not found and (process is None or process.poll() is not None):
            break
        time.sleep(0.02)
    if process is not None:
        process.wait()


def _alive(process: psutil.Process) -> bool:
    """Running still, and the same process: a number may have gone to another."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let a second, impatient Ctrl-C wait until everything is cleared away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
