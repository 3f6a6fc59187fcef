"""Run a function on several ranks, from a notebook cell, a script, or under torchrun.

Ranks are forked from a small server process that has imported torch once (Python's forkserver), so four of
them are ready in a tenth of a second; where there is no fork (Windows) they are spawned. ``World`` collects what
they print, finds out which rank waits for which when they hang, and leaves no process behind, however it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from course_lib.runtime import rank, torchrun
from course_lib.runtime.mesh import mesh_size
from course_lib.runtime.world import World


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

    ``fn`` may be defined in a notebook cell: it is sent with all that it refers to. Inside it the default
    process group is ready and ``current_device()`` is this rank's device. Under torchrun nothing is started:
    every process is already a rank, runs ``fn`` itself, and returns the results of all.

    A run of more than two seconds shows the elapsed time and what each rank does, in JupyterLab and in a
    terminal, until it ends. Ctrl-C and JupyterLab's Stop button end all ranks.

    Args:
        fn: what every rank runs.
        ranks: how many; may be left out when ``mesh`` is given.
        mesh: named axes and their sizes, such as ``{"dp": 2, "tp": 2}``; ``fn`` then gets a ``DeviceMesh``.
        args: passed on to ``fn``, a copy to each rank.
        timeout: seconds after which the run counts as hung and is stopped; ``None`` for no limit. Ranks that
            all wait for each other are found within seconds, whatever the limit.
        backend: ``"nccl"`` or ``"gloo"``; by default NCCL with a GPU per rank, else Gloo.
        quiet: show neither what the ranks print nor the progress of a long run.

    Raises:
        ValueError: a number of ranks, mesh, backend or function that cannot be launched.
        RankError: a rank raised, exited, was killed, or hung; the message begins with the first cause.
        KeyboardInterrupt: the run was stopped; all ranks have ended.
    """
    ranks = checked_ranks(ranks, mesh)
    check_timeout(timeout)
    if not isinstance(args, (tuple, list)):
        raise ValueError(f"args must be a tuple of the function's arguments, such as (x,), not {args!r}")
    if rank.in_rank:
        raise ValueError(
            "launch() was called inside a rank: launch from outside, with as many ranks as you need"
        )
    if torchrun.is_active():
        return torchrun.run(fn, ranks, mesh, args, backend)
    world = World(ranks, backend, quiet)
    try:
        return world.run(fn, args, mesh=mesh, timeout=timeout)
    finally:
        world.stop()


def checked_ranks(ranks: int | None, mesh: Mapping[str, int] | None) -> int:
    """How many ranks are asked for; ``ValueError`` if the number or the mesh is not usable."""
    if mesh is not None:
        size = mesh_size(mesh)
        if ranks is not None and ranks != size:
            raise ValueError(f"mesh {dict(mesh)} has {size} ranks, but ranks={ranks!r} was asked for")
        return size
    if not isinstance(ranks, int) or isinstance(ranks, bool) or ranks < 1:
        raise ValueError(f"ranks must be a whole number, 1 or more, not {ranks!r}")
    return ranks


def check_timeout(timeout: float | None) -> None:
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
        raise ValueError(f"timeout must be a positive number of seconds or None, not {timeout!r}")
