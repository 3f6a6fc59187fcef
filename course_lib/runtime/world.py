"""All ranks of one run: starts them, gives them functions to call, waits for the results, and ends them.

``launch`` makes a world for one call. The ranks of ``%%ranks`` are a world that lives until it is stopped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import wait
from typing import Any

from course_lib.processes import descendants
from course_lib.runtime import devices, rank
from course_lib.runtime.errors import (
    RankError,
    error_of_raised,
    read_result,
    show_as_one_line,
    what_others_did,
)
from course_lib.runtime.fork_server import context, preload, scratch_folder, without_main  # noqa: F401
from course_lib.runtime.hang import HangWatch
from course_lib.runtime.interrupts import interrupts_held_back
from course_lib.runtime.processes import RankProcess
from course_lib.runtime.progress import Progress
from course_lib.runtime.report import death_message
from course_lib.runtime.serialize import cells, pickle_call

RELEASE_AFTER = 0.5  # seconds in which, after an exception, all other ranks only wait
LOOK_AGAIN = (
    0.1  # seconds: to look takes a rank processor time, by which one that works is told from one that waits
)
GRACE = 0.3  # seconds in which other ranks may report their own exception after the first
GRACE_AFTER_LOSS = 5.0  # where a connection was lost: the exception of the rank at its other end tells why
RECONNECT_WITHIN = 10.0  # seconds for ranks whose connections were closed to fail, and to connect again
MAX_RANKS = "COURSE_LIB_MAX_RANKS"
RANKS_A_CORE, FEW = 8, 32  # at most so many, but these in any case
# Pickling and starting change what all threads share (cloudpickle's registry, __main__): one launch at a time.
_starting = threading.Lock()


class World:
    """Processes that send messages to each other, and to this process, which started them.

    Args:
        ranks: how many.
        backend: ``"nccl"`` or ``"gloo"``; by default NCCL with a GPU per rank, else Gloo.
        quiet: do not show what the ranks print, nor the progress of a long run.

    Raises:
        ValueError: no ranks can be started: too many, an unusable backend, no folder to work in.
    """

    def __init__(self, ranks: int, backend: str | None = None, quiet: bool = False) -> None:
        check_number(ranks)
        self.size, self.quiet, self.started = ranks, quiet, time.time()
        self.processes: list[RankProcess] = []
        self.backend = devices.choose_backend(ranks, backend)
        self._mark = uuid.uuid4().hex  # of all that these ranks start
        here = working_folder()
        with _starting:
            scratch = scratch_folder()
        # The ranks meet at a file, which cannot clash as a port can. It is in the folder that multiprocessing
        # removes when this process ends.
        self._folder = tempfile.mkdtemp(prefix="ranks-", dir=scratch)
        self._meetings = 0
        job = {
            "ranks": ranks,
            "meeting": self._next_meeting(),
            "scratch": scratch,
            "launcher": os.getpid(),
            "backend": self.backend,
            "threads": max(1, (os.cpu_count() or 1) // ranks),
            "path": [entry or here for entry in sys.path],
            "folder": here,
            "environment": {**os.environ, descendants.MARK: self._mark},
        }
        with self._stopped_if_it_fails(), interrupts_held_back():
            with _starting, without_main():
                for r in range(ranks):
                    self.processes.append(RankProcess(context(), r, quiet))
            for process in self.processes:
                process.send("job", rank.Job(rank=process.rank, **job))

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple = (),
        *,
        mesh: Mapping[str, int] | None = None,
        on: list[int] | None = None,
        timeout: float | None = None,
        keep: bool = False,
    ) -> list[Any]:
        """Call ``fn(*args)``, or ``fn(mesh, *args)``, on the ranks ``on`` (all by default); results in rank order.

        Args:
            keep: when a rank raises, wait for the others and leave all alive. A hang, a death or Ctrl-C ends
                the world in any case.

        Raises:
            RankError: a rank raised, exited, was killed, or hung.
        """
        call = _call(fn, args, mesh)
        members = [self.processes[r] for r in on] if on is not None else self.processes
        began = time.monotonic()
        try:
            with self._stopped_if_it_fails(keep=keep):
                for process in members:
                    process.begin("call", call)
                return self._collect(members, timeout, keep)
        except KeyboardInterrupt as stop:
            ended = f"stopped after {time.monotonic() - began:.0f} s: all {self.size} ranks were ended"
            show_as_one_line(stop, ended + (", and their variables are gone" if keep else ""))
            raise

    def begin(self, fn: Callable[..., Any], args: tuple = ()) -> None:
        """Hand ``fn(*args)`` to all ranks and go on; whoever calls this looks at ``processes`` for what comes back."""
        call = _call(fn, args)
        for process in self.processes:
            process.begin("call", call)

    def show_output(self, shown: bool) -> None:
        """Whether what the ranks print, and the progress of a long run, is shown from now on."""
        self.quiet = not shown
        for process in self.processes:
            for output in process.outputs:
                output.quiet = not shown

    def is_alive(self) -> bool:
        return bool(self.processes) and not any(p.is_dead() for p in self.processes)

    def stop(self) -> None:
        """End every rank and all that it started, show what it printed, remove the meeting file."""
        with interrupts_held_back():
            if all(p.returned is not None for p in self.processes):
                for process in self.processes:
                    process.leave()
            alone = [process.stop() for process in self.processes]
            if not all(alone):
                descendants.end_marked(descendants.MARK, self._mark)
            # In rank order, and also when a rank failed: what it printed is a clue.
            for process in self.processes:
                process.show_rest()
                process.close()
            self.processes = []
            shutil.rmtree(self._folder, ignore_errors=True)

    @contextlib.contextmanager
    def _stopped_if_it_fails(self, keep: bool = False) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not (keep and isinstance(error, RankError) and error.ranks_alive):
                self.stop()
            raise

    def _next_meeting(self) -> str:
        self._meetings += 1
        return os.path.join(self._folder, f"store-{self._meetings}")

    def _collect(self, members: list[RankProcess], timeout: float | None, keep: bool) -> list[Any]:
        """Wait for every rank's result, or find out why it will not come."""
        idle = [p.rank for p in self.processes if p not in members]
        watch = HangWatch(members, timeout, idle)
        failed = None
        with Progress(members, silent=self.quiet) as progress:
            while any(not p.is_done() for p in members) if keep else any(p.returned is None for p in members):
                wait(
                    [source for p in self.processes for source in p.sources()], timeout=0.1 if failed else 0.5
                )
                for process in self.processes:
                    process.receive()
                failed = next((p for p in members if p.raised), None)
                dead = next((p for p in self.processes if p.is_dead()), None)
                if dead or (failed and not keep):
                    self._give_others_a_moment(members)
                    dead = next((p for p in self.processes if p.is_dead()), None)
                if dead:  # before the peers that only noticed it
                    others, places = what_others_did(members, but=dead), {p.rank: p.where for p in members}
                    raise RankError(death_message(dead.rank, dead.exit_code(), others, places), dead.rank)
                if failed and not keep:
                    raise error_of_raised(members)
                if failed and watch.all_wait_for(RELEASE_AFTER):
                    return self._reconnect(members)
                pause = time.monotonic() - watch.asked
                if failed and pause > LOOK_AGAIN and not any(p.asked for p in members):
                    watch.ask()
                watch.look()
                progress.show()
        for process in members:
            process.show_rest()
        if any(p.raised for p in members):
            raise error_of_raised(members, ranks_alive=True)
        return [read_result(p) for p in members]

    def _give_others_a_moment(self, members: list[RankProcess]) -> None:
        raised = [p.raised.lost_peer for p in members if p.raised]
        lost = (any(raised) and all(raised)) or any(p.exit_code() == -signal.SIGABRT for p in members)
        until = time.monotonic() + (GRACE_AFTER_LOSS if lost else GRACE)
        while (left := until - time.monotonic()) > 0:
            if not (pending := [p for p in members if not (p.is_done() or p.is_dead())]):
                break
            for process in pending:
                process.ask_where()
            wait([p.channel for p in pending], timeout=min(left, 0.1))
            for process in members:
                process.receive()

    def _reconnect(self, members: list[RankProcess]) -> list[Any]:
        """After an exception: release the ranks that wait for the one that raised, and connect all anew.

        A wait inside Gloo or NCCL cannot be interrupted, but it fails when its connections are closed.
        """
        error = error_of_raised(members, ranks_alive=True)
        error.reconnected = True
        until = time.monotonic() + RECONNECT_WITHIN
        for process in self.processes:
            process.send("disconnect", None)
        meeting = self._next_meeting()
        told: list[RankProcess] = []
        while len(told) < self.size or not all(p.is_done() for p in told):
            for process in self.processes:
                process.receive()
                if process not in told and (process.is_done() or process not in members):
                    process.begin("rejoin", meeting)
                    told.append(process)
            if time.monotonic() > until or any(p.is_dead() for p in self.processes):
                error.ranks_alive = False
                break
            wait([p.channel for p in self.processes], timeout=0.1)
        for process in self.processes:
            process.show_rest()
        raise error


def check_number(ranks: int) -> None:
    """``ValueError`` for more ranks than the machine gets through; ``COURSE_LIB_MAX_RANKS`` sets another bound."""
    cores = os.cpu_count() or 1
    given = os.environ.get(MAX_RANKS, "")
    most = int(given) if given.isdecimal() else max(FEW, RANKS_A_CORE * cores)
    if ranks > most:
        raise ValueError(
            f"{ranks} ranks are asked for, and at most {most} are started on this machine of {cores} cores: set "
            f"{MAX_RANKS} to allow more"
        )


def working_folder() -> str:
    """``ValueError`` where it is gone: no process can be started there."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ValueError(
            "the working directory is gone, so no ranks can be started in it: change to one that exists (os.chdir)"
        ) from None


def _call(fn: Callable[..., Any], args: tuple, mesh: Mapping[str, int] | None = None) -> rank.Call:
    with _starting:
        return rank.Call(pickle_call(fn, args), dict(mesh) if mesh else None, cells())
