"""An agent: starts, watches and restarts the ranks of one machine, and takes part in the rounds for them.

torchrun's agent ends all its workers and starts new ones in each round. Here the processes of ranks that were not lost
stay: they get the place that they have in the next round, connect again, and still have their state in memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import Any

from course_lib.elastic.journal import JournalWriter
from course_lib.elastic.limits import Limits
from course_lib.elastic.rendezvous import RUN_ID, Rendezvous
from course_lib.elastic.rounds import ENDED, SEALED, Round
from course_lib.elastic.stores import Stores, open_store
from course_lib.elastic.worker import Outcome, Place, run_round
from course_lib.runtime.errors import read_result
from course_lib.runtime.world import World

LOOK = 0.02  # seconds between two looks at a round that is being formed; at one that runs, a heartbeat
GRACE = 0.3  # seconds in which ranks may end a round by themselves, before their connections are closed
AGAIN = 0.5  # seconds after which they are closed once more: a rank may have opened new ones
STUCK = 5.0  # seconds after which a rank that was told so, and still does not end its round, is killed
IN_VAIN = 6  # rounds of the same members without one step, after which the run ends
DONE = "done"


@dataclass(frozen=True)
class Job:
    """What an agent is told at its start."""

    me: str
    hosts: tuple[str, ...]
    train: bytes  # cloudpickle of (function, args)
    limits: Limits
    ranks: int = 1  # on this machine
    restarts: int = 0  # of ranks that die; after those the agent leaves
    timeout: float = 60.0  # of collectives
    backend: str = "gloo"
    journal: str | None = None
    run_id: str = RUN_ID
    checkpoints: str | None = None  # the folder


@dataclass(frozen=True)
class Ended:
    """How an agent ended: ``sentence`` is ``"done"``, or why it could not go on."""

    sentence: str
    results: dict[int, Any]  # rank -> what the training function returned
    traceback: str = ""


class Worker:
    """The process of one rank. A World of one: it has the process's channel, its output, and its certain end."""

    def __init__(self, backend: str) -> None:
        self.world = World(1, backend, quiet=True)
        self.process = self.world.processes[0]
        self.rank = 0
        self.busy = False
        self.outcome: Outcome | None = None
        self.interrupted: float | None = None  # since when its round has been over
        self.told = 0.0  # when it was last told to close its connections

    def begin(self, train: bytes, place: Place) -> None:
        self.rank, self.busy, self.outcome, self.interrupted = place.rank, True, None, None
        self.world.begin(run_round, (train, place))

    def look(self) -> None:
        self.process.receive()
        if self.busy and self.process.is_done():
            self.busy = False
            if self.process.returned is not None:
                self.outcome = read_result(self.process)


class Agent:
    """Runs until training is done or cannot go on. ``run`` returns how it ended."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.writer = JournalWriter(job.journal, job.me)
        self.rendezvous = Rendezvous(
            job.me, job.hosts, Stores(job.limits.patience), job.limits, run_id=job.run_id
        )
        self.workers: list[Worker] = []
        self.round: Round | None = None  # the one that the workers were given
        self.restarts = job.restarts
        self.in_vain: list[Round] = []  # the last rounds, if none of them did a step
        self.waited = 0.0  # seconds without a sealed round
        self.looked = time.monotonic()  # the time of the last turn

    def run(self) -> Ended:
        store = open_store(self.job.me)  # noqa: F841  others use it as long as this object lives
        try:
            reuse_fork_server()
            self.workers = [Worker(self.job.backend) for _ in range(self.job.ranks)]
            while (ended := self._turn()) is None:
                sources = [source for w in self.workers for source in w.process.sources() if w.busy]
                wait(sources, timeout=self.job.limits.beat if self.rendezvous.is_member() else LOOK)
            self.writer.write("ended", sentence=ended.sentence)
            self.rendezvous.part()  # where the record is ends with this process
            return ended
        finally:
            for worker in self.workers:
                worker.world.stop()

    def _turn(self) -> Ended | None:
        """Look once at the round and at the workers, and act."""
        try:
            self.rendezvous.poll()
        except ValueError as refused:  # by the store of another run
            return Ended(str(refused), {})
        for worker in self.workers:
            worker.look()
        if ended := self._failed_worker():
            return ended
        outcomes = [w.outcome.kind for w in self.workers if w.outcome]
        if self.round and len(outcomes) == len(self.workers) and set(outcomes) == {"returned"}:
            self.rendezvous.end(DONE)
            return Ended(DONE, self._results())
        if self.round and any(kind != "returned" for kind in outcomes):
            self.rendezvous.reform(self.round.number)
        round = self.rendezvous.round  # not that of ``poll``: ``reform`` may have met the one after it
        self._count_wait(round)
        if round.phase == ENDED:
            if self._interrupt() and not any(w.busy for w in self.workers):
                return Ended(round.sentence, self._results())
            return None
        if self.rendezvous.is_member() and not self._is_running(round):
            if self._interrupt():
                self._begin(round)
        elif not self.rendezvous.is_member():
            self._interrupt()
            if self.waited > self.job.limits.give_up:
                return self._give_up()
        return None

    def _count_wait(self, round: Round) -> None:
        """While others train, this agent is a late comer, and the run goes on.

        A turn counts beat_timeout at most: an agent that was stopped for longer did not wait, and must not end the run.
        """
        now = time.monotonic()
        self.waited += min(now - self.looked, self.job.limits.beat_timeout)
        self.looked = now
        if round.phase == SEALED:
            self.waited = 0.0

    def _results(self) -> dict[int, Any]:
        """Of those ranks that came to the end; one that lost a peer in the last step has none."""
        return {w.rank: w.outcome.value for w in self.workers if w.outcome and w.outcome.kind == "returned"}

    def _is_running(self, round: Round) -> bool:
        return self.round is not None and (round.number, round.host) == (self.round.number, self.round.host)

    def _begin(self, round: Round) -> None:
        if vain := self._rounds_in_vain(round):
            self.rendezvous.end(vain)
            return
        self.round, first = round, round.members.index(self.job.me) * self.job.ranks
        self.writer.write("round", number=round.number, members=round.members, host=round.host)
        for local, worker in enumerate(self.workers):
            place = Place(
                first + local,
                len(round.members) * self.job.ranks,
                round.number,
                self.job.me,
                round.host,
                self.job.limits.max_agents,
                self.job.timeout,
                self.job.backend,
                self.job.journal,
                self.job.checkpoints,
            )
            worker.begin(self.job.train, place)

    def _interrupt(self) -> bool:
        """Let workers end a round that is over; whether all have. One that is stuck is killed and started anew."""
        now = time.monotonic()
        for i, worker in enumerate(self.workers):
            if not worker.busy:
                continue
            if worker.interrupted is None:
                worker.interrupted = now
            elif now - worker.interrupted > STUCK:
                self._replace(i)
            elif now - worker.interrupted > GRACE and now - worker.told > AGAIN:
                worker.told = now
                worker.process.send("disconnect")
        return not any(worker.busy for worker in self.workers)

    def _replace(self, i: int) -> None:
        self.workers[i].world.stop()
        self.workers[i] = Worker(self.job.backend)

    def _failed_worker(self) -> Ended | None:
        """A rank that died is started again, or its agent leaves; an exception ends the run."""
        for i, worker in enumerate(self.workers):
            if worker.process.raised:
                raised = worker.process.raised
                said = f"rank {worker.rank} raised {raised.kind}: {raised.message}"
                self.rendezvous.end(said)
                return Ended(said, {}, raised.text)
            if worker.process.is_dead():
                self.writer.write("rank died", rank=worker.rank)
                if not self.restarts:
                    self.rendezvous.leave()
                    code = worker.process.exit_code()
                    return Ended(
                        f"rank {worker.rank} ended with exit code {code}, and no restart is left", {}
                    )
                self.restarts -= 1
                self._replace(i)
                if self.round:
                    self.rendezvous.reform(self.round.number)
        return None

    def _rounds_in_vain(self, round: Round) -> str:
        """Why the run ends, when the same members have tried again and again without doing a step."""
        lost = [
            w.outcome for w in self.workers if w.outcome and w.outcome.kind == "lost" and not w.outcome.steps
        ]
        same = not self.in_vain or self.in_vain[-1].members == round.members
        self.in_vain = [*self.in_vain, round] if lost and same else [round]
        if len(self.in_vain) <= IN_VAIN:
            return ""
        return f"the ranks lost their connections in {IN_VAIN} rounds without one step: {lost[0].value}"

    def _give_up(self) -> Ended:
        limits, round = self.job.limits, self.rendezvous.round
        there = len(round.members) if round.number else 0
        said = (
            f"no round was formed in {limits.give_up:g} s: {limits.min_agents} agents are needed, and {there} "
            "had joined"
        )
        if not self.rendezvous.store:
            said = f"none of the hosts {', '.join(self.job.hosts)} had a store to meet at for {limits.give_up:g} s"
        self.rendezvous.end(said)
        return Ended(said, {})


def run_agent(job: Job) -> Ended:
    return Agent(job).run()


def reuse_fork_server() -> None:
    """Let an agent that was itself forked from the fork server fork its ranks there, too: a second one costs a second.

    Python means to do so (the docstring of ``ForkServer.ensure_running`` says it), and does not. An agent that was
    started otherwise, or by a Python whose fork server asks for a key (3.14), starts its own.
    """
    server = forkserver._forkserver
    known = getattr(server, "_forkserver_address", None) and getattr(server, "_forkserver_alive_fd", None)
    if known and server._forkserver_pid is None and not hasattr(server, "_forkserver_authkey"):
        forkserver.ensure_running = server.ensure_running = lambda: None
