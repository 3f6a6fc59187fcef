"""The life of one rank: a forked process that joins its peers, calls the function, and reports.

It talks to its launcher over one connection. Messages from the rank: ``("at", Whereabouts)``,
``("returned", bytes)``, ``("raised", Raised)``. Messages to it: ``"where"``, ``"leave"``.
"""

from __future__ import annotations

import contextlib
import linecache
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from course_lib.runtime import devices
from course_lib.runtime import stack_inspection as whereabouts
from course_lib.runtime.mesh import make_mesh

# Only these lines hold a learner's own code back from the top of its traceback.
PLUMBING = ("course_lib/runtime/rank.py", "course_lib/runtime/launch.py")

in_rank = False  # true in every process that main() has taken over


@dataclass(frozen=True)
class Job:
    """Everything a rank must know, sent to it right after its start."""

    rank: int
    ranks: int
    meeting: str  # the file through which the ranks find each other
    scratch: str  # the launcher's temporary folder, with the meeting in it
    backend: str
    threads: int
    mesh: dict[str, int] | None
    call: bytes  # cloudpickle of (fn, args)
    path: list[str]
    folder: str
    environment: dict[str, str]
    cells: dict[str, tuple[str, str]]  # filename -> (name to show, source) of code that is in no file


@dataclass(frozen=True)
class Raised:
    """An exception on its way to the launcher."""

    kind: str
    message: str
    text: str  # the traceback, formatted where the source is known
    pickled: bytes | None
    when: float  # time.monotonic, one clock for all processes of a machine


def main(channel: Connection, stdout: Connection, stderr: Connection) -> None:
    """Entry point of the forked process; never returns."""
    global in_rank
    in_rank = True
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the launcher alone, which then stops all ranks, their children included
    _redirect(stdout, stderr)
    lock, leave = threading.Lock(), threading.Event()

    def tell(kind: str, content: Any) -> None:
        with lock:
            channel.send_bytes(pickle.dumps((kind, content)))

    job: Job = pickle.loads(channel.recv_bytes())
    listening = (channel, tell, leave, threading.get_ident(), job.scratch)
    threading.Thread(target=_answer_launcher, args=listening, daemon=True).start()
    try:
        result = _run(job)
        tell("returned", _pickle_result(result))
    except BaseException as error:  # SystemExit too: whatever ends a rank is told to the learner
        tell("raised", _raised(error))
    # Stay until everyone is done: a peer that still talks to this rank must not see its connection close.
    leave.wait()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    _flush()
    os._exit(0)


def _run(job: Job) -> Any:
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.folder)
    sys.path[:] = job.path
    for filename, (name, source) in job.cells.items():
        whereabouts.place_names[filename] = name
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    fn, args = cloudpickle.loads(job.call)
    torch.set_num_threads(job.threads)
    _own_processes(os.path.dirname(job.meeting))
    join_group(job)
    if job.mesh is not None:
        args = (make_mesh(job.mesh), *args)
    result = fn(*args)
    _flush()
    return result


def _own_processes(folder: str) -> None:
    """Let the function start processes as it would at home, a DataLoader's workers among them.

    A rank inherits its own way of starting, the fork server: there each worker would import torch again, and a
    dataset from a notebook cell could not follow. Their sockets lie where the launcher tidies up.
    """
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.current_process()._config["tempdir"] = folder


def join_group(job: Job) -> None:
    """Meet the other ranks of this machine at the launcher's file."""
    devices.set_device(job.rank)
    if loopback := next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None):
        os.environ.setdefault(
            "GLOO_SOCKET_IFNAME", loopback
        )  # a laptop's own host name often resolves nowhere
    store = dist.FileStore(job.meeting, job.ranks)
    backend = devices.WITH_CPU.get(job.backend, job.backend)
    dist.init_process_group(backend, store=store, rank=job.rank, world_size=job.ranks)


def _answer_launcher(
    channel: Connection, tell: Any, leave: threading.Event, main_thread: int, scratch: str
) -> None:
    """Answer where the main thread is; when the launcher is gone, go too, and take our children along."""
    while True:
        try:
            request = channel.recv_bytes()
            if request == b"leave":
                leave.set()
                return
            place = None
            with contextlib.suppress(
                Exception
            ):  # a stack in motion: nothing seen there is worth a rank's life
                place = whereabouts.whereabouts(main_thread)
            tell("at", place)
        except (EOFError, OSError):
            shutil.rmtree(scratch, ignore_errors=True)  # a launcher that was killed could not tidy up
            if hasattr(os, "killpg"):
                os.killpg(0, signal.SIGKILL)
            os._exit(1)


def _redirect(stdout: Connection, stderr: Connection) -> None:
    """Send everything written to the two streams, by Python or by C, to the launcher."""
    if os.name == "nt":  # its pipes are no file descriptors: there, ranks write to the terminal directly
        return
    for stream, connection, number in ((sys.stdout, stdout, 1), (sys.stderr, stderr, 2)):
        _ = stream.flush() if stream else None
        os.dup2(connection.fileno(), number)
        connection.close()
        mode = {"buffering": 1, "encoding": "utf-8", "errors": "replace", "closefd": False}
        setattr(sys, "stdout" if number == 1 else "stderr", open(number, "w", **mode))  # noqa: SIM115


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _pickle_result(result: Any) -> bytes:
    try:
        return cloudpickle.dumps(result)
    except Exception as error:
        raise TypeError(
            f"the result of this rank is a {type(result).__name__}, which cannot be sent to the launcher "
            f"({error}): return tensors, numbers, strings, or lists and dicts of them"
        ) from None


def _raised(error: BaseException) -> Raised:
    try:
        pickled = cloudpickle.dumps(error)
        pickle.loads(pickled)  # some exceptions can be written but not read back
    except Exception:
        pickled = None
    try:
        message = str(error)
    except Exception as failure:
        message = f"(its message cannot be shown: {type(failure).__name__} in __str__)"
    text = whereabouts.format_exception(error, skip_modules=PLUMBING)
    return Raised(type(error).__name__, message, text, pickled, time.monotonic())
