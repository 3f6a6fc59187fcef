"""What runs in the process of one rank: it joins the other ranks, then calls the functions that it is sent.

It has one connection to the process that started it. The rank receives, as pairs of kind and content,
``("job", Job)`` first, then ``("call", Call)`` any number of times, ``("where", None)`` at any time,
``("disconnect", None)`` and ``("rejoin", file)`` after a failure, ``("leave", None)`` at the end. It sends
``("returned", bytes)`` or ``("raised", Raised)`` for every call and rejoin, and ``("at", Whereabouts)``.
"""

from __future__ import annotations

import contextlib
import linecache
import multiprocessing
import os
import pickle
import queue
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
import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from course_lib.processes.descendants import (
    MARK,
    adopt_orphans,
    end_descendants,
    is_running,
    mark_this_process,
)
from course_lib.runtime import devices
from course_lib.runtime import stack_inspection as whereabouts
from course_lib.runtime.abort import tell_on_abort
from course_lib.runtime.mesh import make_mesh
from course_lib.runtime.peers import lost_a_peer

# Frames of these files are left out of tracebacks: they only lead to the learner's code.
PLUMBING = ("course_lib/runtime/rank.py", "course_lib/runtime/launch.py", "course_lib/runtime/cell.py")

ENDS_WITHIN = 1.0  # seconds in which a launcher that ends is gone, once it has closed its channels

LONGEST = 100_000  # characters of a message

in_rank = False  # true in every process in which main() runs


@dataclass(frozen=True)
class Job:
    """What a rank must know to join the others, sent to it right after its start."""

    rank: int
    ranks: int
    meeting: str  # the file through which the ranks find each other
    scratch: str  # the starting process's temporary folder, with the meeting in it
    launcher: int  # the starting process
    backend: str
    threads: int
    path: list[str]
    folder: str
    environment: dict[str, str]


@dataclass(frozen=True)
class Call:
    """A function to call on a rank."""

    pickled: bytes  # cloudpickle of (fn, args)
    mesh: dict[str, int] | None  # if given, fn gets this mesh as its first argument
    cells: dict[str, tuple[str, str]]  # filename -> (name to show, source) of code that is in no file


@dataclass(frozen=True)
class Raised:
    """An exception on its way to the launcher."""

    kind: str
    message: str
    text: str  # the traceback, formatted where the source is known
    pickled: bytes | None
    when: float  # time.monotonic, one clock for all processes of a machine
    where: whereabouts.Whereabouts | None  # the collective that raised it, if one did
    lost_peer: bool  # it says no more than that the connection to another rank was lost


def main(channel: Connection, stdout: Connection, stderr: Connection) -> None:
    """Entry point of the forked process; never returns."""
    global in_rank
    in_rank = True
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the launcher alone, which then stops all ranks, their children included
    _redirect(stdout, stderr)
    lock = threading.Lock()
    requests: queue.SimpleQueue = queue.SimpleQueue()

    def tell(kind: str, content: Any) -> None:
        with lock:
            channel.send_bytes(pickle.dumps((kind, content)))

    os.set_inheritable(channel.fileno(), False)  # a program that takes the rank's place (exec) closes it
    _, job = pickle.loads(channel.recv_bytes())
    adopt_orphans()
    mark_this_process(job.environment[MARK])
    listening = (channel, tell, requests, threading.get_ident(), job)
    threading.Thread(target=_listen, args=listening, daemon=True).start()
    tell_on_abort(tell, threading.get_ident())
    failure = None
    try:
        _set_up(job)
    except BaseException as error:
        failure = error
    me = os.getpid()
    # The rank stays until every rank is done: a peer that still sends to it must not see its connection close.
    while (request := requests.get()) is not None:
        kind, content = request
        try:
            if failure is not None:
                raise failure
            answer = "returned", _pickle_result(_call(content) if kind == "call" else rejoin(job, content))
        except BaseException as error:  # SystemExit too: it ends the function, and the learner is told
            answer = "raised", _raised(error)
        if os.getpid() != me:  # the function has forked, and this is the child's end: the rank answers itself
            print(answer[1].text if answer[0] == "raised" else "", end="", file=sys.stderr, flush=True)
            os._exit(answer[0] == "raised")
        tell(*answer)
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    _flush()
    end_descendants()
    os._exit(0)


def _set_up(job: Job) -> None:
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.folder)
    sys.path[:] = job.path
    torch.set_num_threads(job.threads)
    # The first square root of a process prepares MKL's functions. When two threads do that at once, one of them
    # sometimes computes with half of the digits (3 in 1,000 processes). So one thread does it, before all else.
    torch.ones(1).sqrt()
    _own_processes(os.path.dirname(job.meeting))
    join_group(job, job.meeting)


def _call(call: Call) -> Any:
    for filename, (name, source) in call.cells.items():
        whereabouts.place_names[filename] = name
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    fn, args = cloudpickle.loads(call.pickled)
    if call.mesh is not None:
        args = (make_mesh(call.mesh), *args)
    try:
        return fn(*args)
    finally:
        _flush()


def _own_processes(folder: str) -> None:
    """Let the function start processes as it could outside of ranks, such as the workers of a DataLoader.

    A rank inherits its own way of starting, the fork server: there each worker would import torch again, and a
    dataset from a notebook cell could not follow. Their sockets lie where the launcher tidies up.
    """
    multiprocessing.set_start_method(None, force=True)
    process: Any = multiprocessing.current_process()
    process._config["tempdir"] = folder


def join_group(job: Job, meeting: str) -> None:
    """Connect to the other ranks; all of them find each other through the file ``meeting``."""
    devices.set_device(job.rank)
    if loopback := next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None):
        os.environ.setdefault(
            "GLOO_SOCKET_IFNAME", loopback
        )  # a laptop's own host name often resolves nowhere
    store = FileStore(meeting, job.ranks)
    backend = devices.WITH_CPU.get(job.backend, job.backend)
    dist.init_process_group(backend, store=store, rank=job.rank, world_size=job.ranks)


def rejoin(job: Job, meeting: str) -> None:
    """Replace the process groups, whose connections have been closed, by a new one."""
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    join_group(job, meeting)


def disconnect() -> None:
    """Close the connections to the other ranks, so that whatever waits in a collective raises.

    Called in another thread than the waiting one, which nothing else can wake: Gloo's waits ignore signals, and
    its ``abort`` waits for them to end.
    """
    for group in list(dist.distributed_c10d._world.pg_names):
        if dist.get_backend(group) == "nccl":
            group.abort()
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_ESTABLISHED and connection.laddr.ip == connection.raddr.ip:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as ours:
                ours.shutdown(socket.SHUT_RDWR)


def _listen(channel: Connection, tell: Any, requests: Any, main_thread: int, job: Job) -> None:
    """Take in what the starting process sends; when that process is gone, end this one and its children."""
    while True:
        try:
            kind, content = pickle.loads(channel.recv_bytes())
            if kind == "leave":
                requests.put(None)
                return
            if kind == "disconnect":
                with contextlib.suppress(
                    Exception
                ):  # what stays connected is found by the launcher's time limit
                    disconnect()
            elif kind == "where":
                place = None
                with contextlib.suppress(Exception):  # the stack changes while it is read
                    place = whereabouts.whereabouts(main_thread)
                tell("at", place)
            else:
                requests.put((kind, content))
        except (EOFError, OSError):
            end_descendants()
            _remove_folders(job)
            if hasattr(os, "killpg"):
                os.killpg(0, signal.SIGKILL)
            os._exit(1)


def _remove_folders(job: Job) -> None:
    """The channel is closed: the launcher is gone, or it has dropped this world without ``stop`` and lives on.

    The system closes the channel a moment before the process has ended. The folders go last: a rank that is still
    being set up would wait for its file to come back, and would not let this thread run.
    """
    until = time.monotonic() + ENDS_WITHIN
    while (lives := is_running(job.launcher)) and time.monotonic() < until:
        time.sleep(0.01)
    # A process that was killed could not remove its folder.
    shutil.rmtree(os.path.dirname(job.meeting) if lives else job.scratch, ignore_errors=True)


def _redirect(stdout: Connection, stderr: Connection) -> None:
    """Send everything written to the two streams, by Python or by C, to the launcher."""
    if os.name == "nt":  # its pipes are no file descriptors: there, ranks write to the terminal directly
        return
    with open(os.devnull) as nothing:  # the launcher's input is not for a rank's programs
        os.dup2(nothing.fileno(), 0)
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
    when = time.monotonic()  # now: what follows may take long
    try:
        pickled = cloudpickle.dumps(error)
        pickle.loads(pickled)  # some exceptions can be written but not read back
    except Exception:
        pickled = None
    try:
        message = str(error)
    except Exception as failure:
        message = f"(its message cannot be shown: {type(failure).__name__} in __str__)"
    text, place = whereabouts.format_exception(error, skip_modules=PLUMBING), whereabouts.raised_at(error)
    return Raised(type(error).__name__, _cut(message), _cut(text), pickled, when, place, lost_a_peer(error))


def _cut(text: str) -> str:
    """Begin and end of a text that is too long for a notebook, such as a message with a tensor's million numbers."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters are left out … {text[-half:]}"
