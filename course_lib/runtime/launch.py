"""Run a function on several ranks, from a notebook cell, a script, or under torchrun.

Ranks are forked from a small server process that has imported torch once (Python's forkserver), so four of
them are ready in a tenth of a second; where there is no fork (Windows) they are spawned. The launcher collects
what they print, finds out who waits for whom when they hang, and leaves no process behind, however it ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import wait
from multiprocessing.util import get_temp_dir
from typing import Any

from course_lib.runtime import cleanup as leftovers
from course_lib.runtime import devices, rank, torchrun
from course_lib.runtime.mesh import mesh_size
from course_lib.runtime.processes import RankProcess
from course_lib.runtime.report import RankError, death_message, first_cause, hang_message, raised_message
from course_lib.runtime.serialize import cells, pickle_call
from course_lib.runtime.stack_inspection import Whereabouts

PRELOAD = [
    "course_lib.runtime.cleanup",
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "course_lib.runtime.rank",
]
DEADLOCK_AFTER = 5.0  # seconds in which every unfinished rank sits in the same collective as before
IDLE_CPU = 0.05  # seconds of processor time: a rank that moved data in those seconds used more
GRACE = 0.3  # seconds in which other ranks may tell their own exception after the first
# Pickling and starting change what all threads share (cloudpickle's registry, __main__): one launch at a time.
_starting = threading.Lock()


def launch(
    fn: Callable[..., Any],
    ranks: int | None = None,
    *,
    mesh: Mapping[str, int] | None = None,
    args: tuple = (),
    timeout: float | None = 120.0,
    backend: str | None = None,
    quiet: bool = False,
) -> list[Any]:
    """Call ``fn(*args)`` on ``ranks`` processes, or ``fn(mesh, *args)`` on a mesh; results in rank order.

    ``fn`` may be defined in a notebook cell: it travels with all that it refers to. Inside it the default
    process group is ready and ``current_device()`` is this rank's device. Under torchrun nothing is started:
    every process is already a rank, runs ``fn`` itself, and returns the results of all.

    Args:
        fn: what every rank runs.
        ranks: how many; may be left out when ``mesh`` is given.
        mesh: named axes and their sizes, such as ``{"dp": 2, "tp": 2}``; ``fn`` then gets a ``DeviceMesh``.
        args: passed on to ``fn``, a copy to each rank.
        timeout: seconds after which the run is called hung and stopped; ``None`` for no limit. Ranks that
            all wait for each other are found out within seconds, whatever the limit.
        backend: ``"nccl"`` or ``"gloo"``; by default NCCL with a GPU per rank, else Gloo.
        quiet: do not show what the ranks print.

    Raises:
        ValueError: a number of ranks, mesh, backend or function that cannot be launched.
        RankError: a rank raised, exited, was killed, or hung; the message begins with the first cause.
    """
    ranks = _checked_ranks(ranks, mesh)
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
        raise ValueError(f"timeout must be a positive number of seconds or None, not {timeout!r}")
    if not isinstance(args, (tuple, list)):
        raise ValueError(f"args must be a tuple of the function's arguments, such as (x,), not {args!r}")
    if rank.in_rank:
        raise ValueError(
            "launch() was called inside a rank: launch from outside, with as many ranks as you need"
        )
    if torchrun.is_active():
        return torchrun.run(fn, ranks, mesh, args, backend)
    backend = devices.choose_backend(ranks, backend)
    with _starting:
        call = pickle_call(fn, args)
    # The ranks meet at a file, which cannot clash as a port can, in the folder that multiprocessing removes with us.
    scratch = get_temp_dir()
    folder = tempfile.mkdtemp(prefix="ranks-", dir=scratch)
    job = {
        "ranks": ranks,
        "meeting": os.path.join(folder, "store"),
        "scratch": scratch,
        "backend": backend,
        "threads": max(1, (os.cpu_count() or 1) // ranks),
        "mesh": dict(mesh) if mesh else None,
        "call": call,
        "path": [entry or os.getcwd() for entry in sys.path],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "cells": cells(),
    }
    running: list[RankProcess] = []
    try:
        with _starting, _without_main():
            for r in range(ranks):
                running.append(RankProcess(_context(), r, quiet))
        for process in running:
            process.send(pickle.dumps(rank.Job(rank=process.rank, **job)))
        results = _collect(running, timeout)
        for process in running:
            process.leave()
        return results
    finally:
        for process in running:
            process.stop()
        for process in running:  # in rank order, and also when a rank failed: what it printed is a clue
            process.show_rest()
        shutil.rmtree(folder, ignore_errors=True)


def _collect(running: list[RankProcess], timeout: float | None) -> list[Any]:
    """Wait for every rank's result, or find out why it will not come."""
    started = moved = asked = time.monotonic()
    before: dict[int, Whereabouts | None] = {}
    while missing := [p for p in running if p.returned is None]:
        wait([source for p in running for source in p.sources()], timeout=0.5)
        for process in running:
            process.receive()
        if any(p.raised or p.is_dead() for p in running):
            _give_others_a_moment(running)
        if dead := next((p for p in running if p.is_dead()), None):  # before the peers that only noticed it
            raise RankError(death_message(dead.rank, dead.exit_code(), _fates(running, but=dead)), dead.rank)
        if any(p.raised for p in running):
            raise _error_of_raised(running)
        missing = [p for p in running if p.returned is None]
        now = time.monotonic()
        if missing and timeout is not None and now - started > timeout:
            raise RankError(_hang(running, now - started))
        if missing and now - started > 1:  # a healthy short run is never asked
            places = {p.rank: p.where for p in missing}
            if not _all_wait(places, before):
                before, moved = places, now
            elif now - moved > DEADLOCK_AFTER and not any(
                p.asked for p in missing
            ):  # old answers prove nothing
                raise RankError(_hang(running, now - started))
            if now - asked > 0.5:
                asked = now
                for process in missing:
                    process.ask_where()
    return [_read_result(p) for p in running]


def _read_result(process: RankProcess) -> Any:
    try:
        return pickle.loads(process.returned)
    except Exception as error:  # some objects can be written but not read back
        raise RankError(
            f"the result of rank {process.rank} cannot be read back ({type(error).__name__}: {error}): "
            "return tensors, numbers, strings, or lists and dicts of them",
            process.rank,
        ) from error


def _all_wait(places: dict[int, Whereabouts | None], before: dict[int, Whereabouts | None]) -> bool:
    """Whether every unfinished rank sits in the same collective as before, without doing anything there."""
    return places == before and all(
        place is not None and place.call and place.cpu - before[r].cpu < IDLE_CPU
        for r, place in places.items()
    )


def _give_others_a_moment(running: list[RankProcess]) -> None:
    until = time.monotonic() + GRACE
    for process in running:
        process.ask_where()
    while (left := until - time.monotonic()) > 0 and not all(p.raised or p.returned for p in running):
        wait([p.channel for p in running], timeout=left)
        for process in running:
            process.receive()


def _error_of_raised(running: list[RankProcess]) -> RankError:
    raised = {p.rank: p.raised for p in running if p.raised}
    first = first_cause(raised)
    error = RankError(raised_message(raised, _fates(running)), first)
    if raised[first].pickled is not None:
        with contextlib.suppress(Exception):  # what a rank can read back, this process need not
            error.__cause__ = pickle.loads(raised[first].pickled)
    return error


def _fates(running: list[RankProcess], but: RankProcess | None = None) -> dict[int, str]:
    """What became of the ranks that are not to blame."""
    fates = {}
    for p in running:
        if p is not but and (but or not p.raised):
            if p.raised:
                fates[p.rank] = "lost the connection to it"
                continue
            in_call = f"waiting in {p.where.call}" if p.where and p.where.call else "running"
            fates[p.rank] = "had returned" if p.returned is not None else f"stopped while {in_call}"
    return fates


def _hang(running: list[RankProcess], seconds: float) -> str:
    until = time.monotonic() + 1.0
    missing = [p for p in running if p.returned is None]
    for process in missing:
        process.where = None
        process.ask_where(again=True)
    while any(p.where is None for p in missing) and time.monotonic() < until:
        wait([p.channel for p in missing], timeout=0.1)
        for process in missing:
            process.receive()
    returned = [p.rank for p in running if p.returned is not None]
    return hang_message(round(seconds), {p.rank: p.where for p in missing}, returned)


def _checked_ranks(ranks: int | None, mesh: Mapping[str, int] | None) -> int:
    if mesh is not None:
        size = mesh_size(mesh)
        if ranks is not None and ranks != size:
            raise ValueError(f"mesh {dict(mesh)} has {size} ranks, but ranks={ranks!r} was asked for")
        return size
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise ValueError(f"ranks must be a whole number, 1 or more, not {ranks!r}")
    return ranks


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver  # exists on POSIX alone

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    os.environ[leftovers.VARIABLE] = get_temp_dir()
    forkserver.ensure_running()
    del os.environ[leftovers.VARIABLE]
    return context


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the caller's script: multiprocessing would run it again in every rank, guard or no guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
