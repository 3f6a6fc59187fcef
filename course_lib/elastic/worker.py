"""What runs in a rank's process: it connects to the ranks of a round and calls the training function.

The process outlives the round. What the function puts into ``session.kept`` is still there in the next round, so the
state of a rank that was not lost is never read from a disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from course_lib.elastic import rounds
from course_lib.elastic.checkpoints import Checkpoints, PeerMemory
from course_lib.elastic.journal import Journal, JournalWriter, timed
from course_lib.elastic.state import TrainingState, share_newest
from course_lib.elastic.stores import split
from course_lib.runtime.peers import lost_a_peer

# Of this process, for all rounds:
_kept: dict[str, Any] = {}
_writers: list[JournalWriter] = []
_peers = PeerMemory()
_checkpoints: dict[str, Checkpoints] = {}  # by folder; it may still be writing when the next round begins


class Reform(Exception):  # noqa: N818  nothing is wrong: a late comer waits, and the round ends at a step's border
    """Raised on all ranks at the same step."""


@dataclass(frozen=True)
class Place:
    """Where a rank is in a round."""

    rank: int
    ranks: int
    round: int
    me: str  # its agent's host
    host: str  # of the store
    max_agents: int
    timeout: float  # of collectives, seconds
    backend: str = "gloo"
    journal: str | None = None  # the folder
    checkpoints: str | None = None  # the folder


@dataclass(frozen=True)
class Outcome:
    """How a rank's part in a round ended: ``"returned"``, ``"reform"`` or ``"lost"`` (a peer)."""

    kind: str
    value: Any
    steps: int  # done in this round


class Session:
    """What a training function is given, anew in each round.

    Attributes:
        rank, ranks: in the default process group, which is connected.
        round: its number.
        kept: stays as long as this process.
        peers: copies of shards in the ranks' memories; stays as long as this process.
        checkpoints: in the folder that the fleet was given; None: it was given none.
    """

    def __init__(self, place: Place, store: dist.Store, writer: JournalWriter) -> None:
        self.rank, self.ranks, self.round = place.rank, place.ranks, place.round
        self.kept, self.steps, self.journal = _kept, 0, writer
        self._place, self._store = place, store
        self.peers, self.checkpoints = _peers, None
        if folder := place.checkpoints:
            self.checkpoints = _checkpoints.setdefault(folder, Checkpoints(folder))

    def restore(self, state: TrainingState) -> None:
        """Bring all ranks, each of which has the whole state, to the nearest state that is left. All ranks call it.

        It is the newest in the memory of any rank, or in a checkpoint if that is newer: all ranks that had done its
        steps are gone. Where nothing is left, training begins.
        """
        newest = torch.tensor([state.step])
        dist.all_reduce(newest, op=dist.ReduceOp.MAX)
        if saved := self._newer_checkpoint(int(newest)):
            state.load_state_dict(saved)
        share_newest(state)
        self.restored(state.step)

    def restore_shards(self) -> dict[str, Any]:
        """As ``restore``, where each rank has one shard of the state, and a copy of its neighbour's in ``peers``.

        A checkpoint is read if it is newer than all that the ranks have in memory, or if both copies of a shard are
        lost. It holds what this method returns.

        Returns:
            ``step``; ``shards`` of all ranks that there were at that step; ``about``, as ``peers.exchange`` was given
            it. Where nothing is left: 0, none, and None.
        """
        try:
            step, shards = self.peers.recover()
            found = {"step": step, "shards": shards, "about": self.peers.about[step]}
        except ValueError:
            found = {"step": 0, "shards": [], "about": None}
        box = [self._newer_checkpoint(found["step"])]
        dist.broadcast_object_list(box, src=0)
        found = box[0] or found
        self.peers.forget_after(found["step"])
        self.restored(found["step"])
        return found

    def _newer_checkpoint(self, step: int) -> dict[str, Any] | None:
        """The newest one, on rank 0, if it is of a later step."""
        if self.checkpoints is None:
            return None
        self.checkpoints.wait()
        newest = self.checkpoints.newest() if self.rank == 0 else None
        return self.checkpoints.read(newest) if newest and newest.about["step"] > step else None

    def note_batch(self, step: int, samples: Any) -> None:
        """Write down which samples this rank uses in a step (counted from 1), before it is computed."""
        self.journal.write(
            "batch", step=step, round=self.round, rank=self.rank, samples=list(map(int, samples))
        )

    def restored(self, step: int) -> None:
        """Write down that all ranks have the same state, at this step."""
        self.journal.write("restored", step=step, round=self.round, rank=self.rank)

    def seen(self, kind: str) -> bool:
        """Whether something of this kind is in the journal of any process of the run."""
        return self._place.journal is not None and bool(Journal.read(self._place.journal).of(kind))

    def span(self, name: str) -> contextlib.AbstractContextManager[None]:
        return timed(self.journal, name)

    def border(self, step: int, loss: float | None = None) -> None:
        """The end of a step, on all ranks. Raises ``Reform`` on all of them when an agent waits to join."""
        self.steps += 1
        self.journal.write("step", step=step, round=self.round, rank=self.rank, loss=loss)
        leave = torch.zeros(1)
        if self.rank == 0:  # one rank looks, so that all leave at the same step
            round = rounds.read(self._store.compare_set("round", "", "").decode())
            waits = round.waiting and len(round.members) < self._place.max_agents
            leave += bool(waits or round.number != self.round)
        dist.broadcast(leave, src=0)
        if leave:
            raise Reform(f"round {self.round} ends after step {step}")


def run_round(pickled: bytes, place: Place) -> Outcome:
    """One rank's part in a round. What the training function raises is raised, unless a peer was lost."""
    if not _writers:
        _writers.append(JournalWriter(place.journal, place.me))
    writer, session = _writers[0], None
    try:
        with connected(place) as store:
            writer.write("connected", round=place.round, rank=place.rank, ranks=place.ranks)
            session = Session(place, store, writer)
            train, args = cloudpickle.loads(pickled)
            result = train(session, *args)
            if session.checkpoints is not None:
                session.checkpoints.wait()
            with contextlib.suppress(Exception):
                dist.barrier()  # let the others end, too, before the connections are closed
        outcome = Outcome("returned", result, session.steps)
    except Reform as reason:
        outcome = Outcome("reform", str(reason), session.steps)
    except Exception as error:
        if not lost_a_peer(error):
            raise
        outcome = Outcome("lost", str(error).splitlines()[0][:200], session.steps if session else 0)
    writer.write(outcome.kind, round=place.round, rank=place.rank)
    return outcome


@contextlib.contextmanager
def connected(place: Place) -> Iterator[dist.Store]:
    """The default process group is that of the round."""
    close_group()
    limit = timedelta(seconds=place.timeout)
    store = dist.TCPStore(*split(place.host), is_master=False, wait_for_workers=False, timeout=limit)
    meeting = dist.PrefixStore(f"group/{place.round}/", store)
    dist.init_process_group(
        place.backend, store=meeting, rank=place.rank, world_size=place.ranks, timeout=limit
    )
    try:
        yield store
    finally:
        close_group()


def close_group() -> None:
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    # PyTorch counts the groups of a process, and ranks meet under that number. A group that could not be connected is
    # counted, too, and never taken back: after it, this rank would look for the others under a number of its own.
    dist.distributed_c10d._world.group_count = 0
