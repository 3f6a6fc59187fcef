"""Answers on ranks: ``launch``, with the guard on every rank.

``guard.py`` watches the notebook's own process. What an answer changes on a rank would go unseen there: a patched
``torch.equal``, a ``send`` that nothing counts. So a check's function travels packed: each rank remembers what the
checks rely on before it unpacks the function, and compares when it has run.

Looking at every function of torch takes a tenth of a second of processor time. The server from which ranks are forked
does it once, when it imports this module, and each rank begins with what the server has seen. After the run a rank
looks again only where the marks (``guard.marks``), which take milliseconds, are not what they were.

Starting ranks takes longer than most cases need them. So a check keeps its ranks to its end (``kept``), and whoever
grades hundreds of answers keeps them for all checks.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from course_lib.grading import guard, settings
from course_lib.runtime import launch as _launch
from course_lib.runtime.fork_server import preload
from course_lib.runtime.launch import checked_ranks
from course_lib.runtime.serialize import pickle_call
from course_lib.runtime.world import World

USES = 100  # launches after which kept ranks are replaced, whatever has gathered in them

preload(__name__)
_AT_START = guard.definitions()
_MODULES_AT_START = {place for place, _ in _AT_START}


@functools.wraps(_launch)
def launch(
    fn: Callable[..., Any], ranks: int | None = None, *, args: tuple = (), **options: Any
) -> list[Any]:
    """As ``course_lib.runtime.launch``; refuses an answer that changes what the checks rely on.

    Raises:
        Tampered: naming what was changed on a rank.
    """
    start = _launch if _kept is None else _on_kept
    results = start(_watched, ranks, args=(pickle_call(fn, args),), **options)
    for changed, _ in results:
        if changed is not None:
            _end_kept()
            raise guard.Tampered(changed)
    return [result for _, result in results]


_kept: dict[int, tuple[World, int]] | None = (
    None  # number of ranks -> the ranks, and how often they were used
)


@contextmanager
def kept() -> Iterator[None]:
    """Within it, launches of equally many ranks use the same processes, one after the other; in another, nothing more.

    Where a rank raises, hangs or changes what is watched, all its peers are ended with it, and the next launch has new
    ones. Python's and torch's settings are set back after each launch, and process groups are closed.
    """
    global _kept
    if _kept is not None:
        yield
        return
    _kept = {}
    try:
        yield
    finally:
        _end_kept()
        _kept = None


def _end_kept() -> None:
    while _kept:
        world, _ = _kept.popitem()[1]
        world.stop()


def _on_kept(
    fn: Callable[..., Any],
    ranks: int | None,
    *,
    args: tuple,
    mesh: Mapping[str, int] | None = None,
    timeout: float | None = 120.0,
    backend: str | None = None,
    quiet: bool = False,
) -> list[Any]:
    size = checked_ranks(ranks, mesh)
    assert _kept is not None
    world, uses = _kept.pop(size, None) or (World(size, backend, quiet), 0)
    world.show_output(not quiet)
    results = world.run(_set_back_after, (fn, *args), mesh=mesh, timeout=timeout)  # ends them if it fails
    if uses + 1 < USES:
        _kept[size] = world, uses + 1
    else:
        world.stop()
    return results


def _set_back_after(*given: Any) -> Any:
    *mesh, fn, call = given
    # Every group has threads of Gloo that wake up 150 times a second. It is closed when all ranks have returned.
    for group in _groups_left.intersection(_process_groups()):
        dist.destroy_process_group(group)
    settings.remember()
    try:
        return fn(*mesh, call)
    finally:
        settings.restore()
        _groups_left.clear()
        _groups_left.update(_process_groups())


_groups_left: set[dist.ProcessGroup] = set()  # on a kept rank: those of the launch before


def _process_groups() -> set[dist.ProcessGroup]:
    """All but that of all ranks."""
    return set(dist.distributed_c10d._world.pg_map) - {dist.group.WORLD}


def _watched(*packed: Any) -> tuple[str | None, Any]:
    *mesh, call = packed
    before = {**_AT_START, **guard.definitions(without=_MODULES_AT_START)}
    marks = guard.marks()
    fn, args = pickle.loads(call)
    loaded = guard.definitions(without=marks)  # what the function needs
    before = {**loaded, **before}  # what was there before is as it was before the function was loaded
    marks.update(guard.marks(without=marks))
    result = fn(*mesh, *args)
    now = guard.marks()
    if any(now.get(module) != mark for module, mark in marks.items()):
        try:
            guard.compare(before, guard.definitions())
        except guard.Tampered as tampered:
            return str(tampered), None
    return None, result
