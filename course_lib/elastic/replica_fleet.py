"""Replicas on this machine, started from a notebook or a test, to be watched, killed and brought back."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.util import get_temp_dir
from typing import Any

from course_lib.elastic.journal import Journal
from course_lib.elastic.limits import Limits
from course_lib.elastic.stores import free_hosts
from course_lib.runtime.errors import error_of_raised, read_result
from course_lib.runtime.world import World


class ReplicaFleet:
    """Replicas 0, 1, …, each a process that no agent watches. Leave the ``with``, and all have ended.

    Args:
        train: the training function, ``train(me, hosts, limits, folder, *args)``; ``folder`` is that of the journal.
        replicas: how many there may be at a time.
        limits: of the rendezvous.
    """

    def __init__(self, train: Callable[..., Any], replicas: int, limits: Limits) -> None:
        if replicas < 1:
            raise ValueError(f"replicas is {replicas}; at least 1 is needed")
        self.train, self.limits, self.hosts = train, limits, tuple(free_hosts(replicas))
        self.folder = tempfile.TemporaryDirectory(prefix="replicas-", dir=get_temp_dir())
        self.worlds: dict[int, World] = {}  # by number
        self._journal: Journal | None = None

    def __enter__(self) -> ReplicaFleet:
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def start(self, i: int, *args: Any) -> int:
        """Start replica i, also where one was killed; ``args`` are passed on to ``train``. Returns its process id."""
        if i in self.worlds:
            self.worlds.pop(i).stop()
        world = self.worlds[i] = World(1, "gloo", quiet=True)
        world.begin(self.train, (self.hosts[i], self.hosts, self.limits, self.folder.name, *args))
        return world.processes[0].pid

    def kill(self, i: int) -> None:
        """SIGKILL to replica i."""
        self.worlds[i].processes[0].process.kill()

    @property
    def journal(self) -> Journal:
        """What has happened so far; after the end, all that happened."""
        return self._journal or Journal.read(self.folder.name)

    def wait_until(self, done: Callable[[Journal], Any], timeout: float = 60.0) -> Any:
        """Wait until something is in the journal; returns what ``done`` returned.

        Raises:
            TimeoutError: it did not happen in time.
            RankError: a replica raised an exception.
        """
        until = time.monotonic() + timeout
        while not (found := done(self.journal)):
            sources = [source for w in self.worlds.values() for p in w.processes for source in p.sources()]
            wait(sources, timeout=0.05)
            for world in self.worlds.values():
                world.processes[0].receive()
                if world.processes[0].raised:
                    raise error_of_raised(world.processes)
            if time.monotonic() > until:
                raise TimeoutError(f"it did not happen within {timeout:g} s")
        return found

    def wait(self, timeout: float = 120.0) -> list[Any]:
        """What the training function returned in each replica that was not killed, in the order of their numbers."""
        self.wait_until(lambda _: not any(map(self.is_running, self.worlds)), timeout)
        ranks = [self.worlds[i].processes[0] for i in sorted(self.worlds)]
        return [read_result(rank) for rank in ranks if rank.returned is not None]

    def is_running(self, i: int) -> bool:
        """Whether replica i has neither returned nor been killed."""
        return self.worlds[i].is_alive() and self.worlds[i].processes[0].returned is None

    def stop(self) -> None:
        """End all replicas, and remove the folder of the journal."""
        if self._journal is None:
            for world in self.worlds.values():
                world.stop()
            self._journal = Journal.read(self.folder.name)
            self.folder.cleanup()
