"""``launch``, on ranks that stay from one launch to the next: for many short ones, such as the cases of a check.

Starting ranks takes longer than most cases need them. So a check keeps its ranks to its end (``kept``), and whoever
grades many answers keeps them for all checks.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from course_lib.runtime import launch as _launch
from course_lib.runtime import settings
from course_lib.runtime.fork_server import preload
from course_lib.runtime.launch import checked_ranks
from course_lib.runtime.serialize import pickle_call
from course_lib.runtime.world import World

USES = 100  # launches after which kept ranks are replaced, whatever has gathered in them

preload(__name__)

# number of ranks -> the ranks, and how often they were used
_kept: dict[int, tuple[World, int]] | None = None


def launch(
    fn: Callable[..., Any], ranks: int | None = None, *, args: tuple = (), **options: Any
) -> list[Any]:
    """As ``course_lib.runtime.launch``, on ranks that are kept where there are any."""
    if _kept is None:
        return _launch(fn, ranks, args=args, **options)
    size = checked_ranks(ranks, options.get("mesh"))
    backend, quiet = options.pop("backend", None), options.pop("quiet", False)
    world, uses = _kept.pop(size, None) or (World(size, backend, quiet), 0)
    world.show_output(not quiet)
    how: dict[str, Any] = {"timeout": 120.0, **options}
    results = world.run(_set_back_after, (pickle_call(fn, args),), **how)  # ends them if it fails
    if uses + 1 < USES:
        _kept[size] = world, uses + 1
    else:
        world.stop()
    return results


@contextmanager
def kept() -> Iterator[None]:
    """Within it, launches of equally many ranks use the same processes, one after the other; in another, nothing more.

    Where a rank raises or hangs, all its peers are ended with it, and the next launch has new ones. Python's and
    torch's settings are set back after each launch, and process groups are closed.
    """
    global _kept
    if _kept is not None:
        yield
        return
    _kept = {}
    try:
        yield
    finally:
        for world, _ in _kept.values():
            world.stop()
        _kept = None


def _set_back_after(*given: Any) -> Any:
    *mesh, call = given
    # Every group has threads of Gloo that wake up 150 times a second. It is closed when all ranks have returned.
    for group in _groups_left.intersection(_process_groups()):
        dist.destroy_process_group(group)
    with settings.kept():
        fn, args = pickle.loads(call)
        try:
            return fn(*mesh, *args)
        finally:
            _groups_left.clear()
            _groups_left.update(_process_groups())


_groups_left: set[dist.ProcessGroup] = set()  # on a kept rank: those of the launch before


def _process_groups() -> set[dist.ProcessGroup]:
    """All but that of all ranks."""
    return set(dist.distributed_c10d._world.pg_map) - {dist.group.WORLD}
