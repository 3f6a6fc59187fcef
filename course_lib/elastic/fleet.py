"""Some agents on this machine, started from a notebook or a test, to be watched, killed and added to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.util import get_temp_dir
from typing import Any

import psutil

from course_lib.elastic.agent import DONE, Ended, Job, run_agent
from course_lib.elastic.journal import Journal, JournalWriter
from course_lib.elastic.limits import Limits
from course_lib.elastic.stores import free_hosts
from course_lib.runtime.errors import RankError, read_result
from course_lib.runtime.fork_server import preload
from course_lib.runtime.serialize import pickle_call
from course_lib.runtime.world import World

preload("course_lib.elastic.agent")  # once for all agents


class Fleet:
    """Agents 0, 1, … of this machine, each with its ranks, that train together. Leave the ``with``, and all have ended.

    Args:
        train: the training function, ``train(session, *args)``.
        agents: how many to start.
        args: passed on to ``train``.
        limits: of the rendezvous.
        ranks_per_agent: processes that train, for each agent.
        restarts: how many ranks that died an agent starts again; after those it leaves.
        places: how many agents there may ever be; each has its host in the list that all agents get.
        checkpoints: the folder in which ranks save states, and from which they go on when no rank is left that has a
            newer one in memory. Whoever gives it removes it. None: the memories are all there is.
        run_id: by which agents know their run from others; None: one that no other fleet has.
    """

    def __init__(
        self,
        train: Callable[..., Any],
        agents: int,
        *,
        args: tuple = (),
        limits: Limits | None = None,
        ranks_per_agent: int = 1,
        restarts: int = 0,
        places: int | None = None,
        timeout: float = 60.0,
        checkpoints: str | os.PathLike | None = None,
        run_id: str | None = None,
    ) -> None:
        if agents < 1 or ranks_per_agent < 1:
            raise ValueError(
                f"agents is {agents} and ranks_per_agent {ranks_per_agent}; both must be 1 or more"
            )
        self.folder = tempfile.TemporaryDirectory(prefix="fleet-", dir=get_temp_dir())
        self.hosts = tuple(free_hosts(places or agents + 2))
        self.limits, self.restarts = limits or Limits(), restarts
        self._job = {
            "hosts": self.hosts,
            "train": pickle_call(train, args),
            "limits": self.limits,
            "ranks": ranks_per_agent,
            "restarts": restarts,
            "timeout": timeout,
            "journal": self.folder.name,
            "checkpoints": None if checkpoints is None else os.path.abspath(checkpoints),
            "run_id": uuid.uuid4().hex if run_id is None else run_id,
        }
        self.agents: dict[int, World] = {}  # by number; those that have ended, too
        self.ended: dict[int, Ended] = {}
        self._journal: Journal | None = None
        self._paused: dict[
            int, subprocess.Popen
        ] = {}  # by agent: what lets it go on when this process is gone
        self._writer = JournalWriter(self.folder.name, "fleet")
        try:
            for _ in range(agents):
                self.add_agent()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def add_agent(self) -> int:
        """Start an agent at the first host that no living agent has; returns its number."""
        i = next((i for i in range(len(self.hosts)) if not self.lives(i)), None)
        if i is None:
            raise ValueError(f"all {len(self.hosts)} places are taken: ask for more with places=")
        if i in self.agents:
            self.agents.pop(i).stop()
            self.ended.pop(i, None)
        world = self.agents[i] = World(1, "gloo", quiet=True)
        job = Job(me=self.hosts[i], **self._job)
        world.begin(run_agent, (job,))
        return i

    @property
    def journal(self) -> Journal:
        """What has happened so far; after the end, all that happened."""
        return self._journal or Journal.read(self.folder.name)

    # ---- to watch ----

    def wait_until(self, done: Callable[[Journal], Any], timeout: float = 60.0) -> Any:
        """Wait until something is in the journal; returns what ``done`` returned.

        Raises:
            TimeoutError: it did not happen in time.
            RankError: all agents have ended before it happened.
        """
        until = time.monotonic() + timeout
        while not (found := done(self.journal)):
            self._receive(0.05)
            if not any(self.lives(i) for i in self.agents):
                if found := done(self.journal):
                    return found
                raise RankError(f"all agents have ended: {self._why()}")
            if time.monotonic() > until:
                last = [{k: v for k, v in e.items() if k != "samples"} for e in self.journal.events[-5:]]
                raise TimeoutError(f"it did not happen within {timeout:g} s; the last events are {last}")
        return found

    def wait_for_step(self, step: int, timeout: float = 60.0) -> None:
        self.wait_until(lambda journal: any(e["step"] >= step for e in journal.of("step")), timeout)

    def wait_for_ranks(self, ranks: int, timeout: float = 60.0) -> None:
        """Until a round of so many ranks, the newest round, has done a step."""

        def trains(journal: Journal) -> bool:
            rounds = journal.rounds()
            return bool(rounds) and rounds[-1][2] == ranks and bool(journal.of("step", round=rounds[-1][1]))

        self.wait_until(trains, timeout)

    def wait(self, timeout: float = 120.0) -> list[Any]:
        """What the training function returned, in the order of the ranks of the last round.

        Raises:
            RankError: training could not go on; the message begins with the sentence that says why.
            TimeoutError: it has not ended in time.
        """
        until = time.monotonic() + timeout
        while any(self.lives(i) for i in self.agents) and not self._has_all_results():
            self._receive(0.1)
            if time.monotonic() > until:
                raise TimeoutError(f"the agents have not ended within {timeout:g} s")
        if not (results := self._results()):
            raise RankError(self._why())
        return [results[rank] for rank in sorted(results)]

    def _results(self) -> dict[int, Any]:
        """By rank."""
        return {
            rank: value
            for e in self.ended.values()
            if e.sentence == DONE
            for rank, value in e.results.items()
        }

    def _has_all_results(self) -> bool:
        """Those of all ranks that trained at the end. An agent that came too late would wait for a round in vain."""
        results = self._results()
        return bool(results) and len(results) == self.journal.rounds()[-1][2]

    # ---- to harm ----

    def kill_rank(self, rank: int, *others: int) -> float:
        """SIGKILL to the processes of one or more ranks of the newest round; returns the time of the first."""
        # All are looked up before the first is killed: after that, another round may be the newest.
        pids = [self.pid_of_rank(r) for r in (rank, *others)]
        return min([self.kill(pid) for pid in pids])

    def kill_agent(self, i: int) -> float:
        """SIGKILL to an agent; its ranks end with it. Returns the time."""
        at = self.kill(self.agents[i].processes[0].pid)
        self.resume_agent(i)  # a rank that is stopped does not see that its agent is gone
        return at

    def pause_agent(self, i: int) -> None:
        """Stop an agent and its ranks (SIGSTOP), as if their machine hung.

        What is stopped would outlive this process, however that ends. So a shell waits for its end, or for
        ``resume_agent``, and then lets them go on.
        """
        if i in self._paused:
            return
        pids = [self.agents[i].processes[0].pid, *self.ranks_of(i)]
        let_go_on = ["sh", "-c", 'read _; kill -CONT "$@" 2> /dev/null', "sh", *map(str, pids)]
        self._paused[i] = subprocess.Popen(let_go_on, stdin=subprocess.PIPE, start_new_session=True)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def resume_agent(self, i: int) -> None:
        """Let a paused agent and its ranks go on (SIGCONT)."""
        if shell := self._paused.pop(i, None):
            shell.communicate()

    def pid_of_rank(self, rank: int) -> int:
        newest = self.journal.rounds()[-1][1]
        return self.journal.of("connected", round=newest, rank=rank)[-1]["pid"]

    def ranks_of(self, i: int) -> list[int]:
        """The processes of agent i's ranks that have been connected, and still are there."""
        connected = self.journal.of("connected", who=self.hosts[i])
        # Those of earlier rounds may be gone, and other processes may have their numbers.
        newest = max((e["round"] for e in connected), default=None)
        return sorted({e["pid"] for e in connected if e["round"] == newest and psutil.pid_exists(e["pid"])})

    def kill(self, pid: int) -> float:
        """SIGKILL to a process of the run; returns the time."""
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        self._writer.write("kill", killed=pid)
        return at

    # ---- to end ----

    def stop(self) -> None:
        """End all agents, their ranks, and remove the folder of the journal."""
        if self._journal is None:
            for world in self.agents.values():
                world.stop()
            for i in list(self._paused):
                self.resume_agent(i)
            self._journal = Journal.read(self.folder.name)
            self._writer.file.close()
            self.folder.cleanup()

    def lives(self, i: int) -> bool:
        """Whether agent i runs, or is paused."""
        return i in self.agents and i not in self.ended and self.agents[i].is_alive()

    def _receive(self, timeout: float) -> None:
        living = {i: w.processes[0] for i, w in self.agents.items() if self.lives(i)}
        if living:
            wait([source for p in living.values() for source in p.sources()], timeout=timeout)
        for i, process in living.items():
            process.receive()
            if process.returned is not None:
                self.ended[i] = read_result(process)
            elif process.raised:
                self.ended[i] = Ended(
                    f"{process.raised.kind}: {process.raised.message}", {}, process.raised.text
                )

    def _why(self) -> str:
        ends = sorted(self.ended.values(), key=lambda e: not e.traceback)
        if not ends:
            return "all agents were killed"
        return "\n".join(filter(None, (ends[-1].sentence, ends[0].traceback)))
