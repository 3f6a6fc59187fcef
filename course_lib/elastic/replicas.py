"""Fault tolerance by replica: a copy of the model that is lost drops out of the sum of gradients, and the others go on.

No agent starts anything again, and nobody leaves the training function. At the start of each step the copies that are
there agree on a round. Where a copy was lost, the others throw the step's gradients away and repeat the step. A copy
that comes back gets the state from a peer: it heals. A sum may end on one copy and break on another. Then only the
first has taken the step, and the other heals, too. The organisation is that of torchft
(https://github.com/meta-pytorch/torchft), whose quorum is our round.

A copy may itself be spread over several ranks, for example by FSDP: a replica group. Then rank i of each group adds up
its gradients with the ranks i of the other groups, and all ranks of a group take a step or none does.

A step must be shorter than ``limits.beat_timeout``, because a heartbeat is sent only when a step begins.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import ProcessGroupGloo

from course_lib.elastic.limits import Limits
from course_lib.elastic.rendezvous import RUN_ID, Rendezvous
from course_lib.elastic.rounds import ENDED
from course_lib.elastic.state import TrainingState, pack, unpack
from course_lib.elastic.stores import Stores, open_store, split

LOOK = 0.02  # seconds


class Replicas:
    """One replica group's part; it is made on each rank of the group.

    >>> replicas = Replicas(me, hosts, limits, state)                         # doctest: +SKIP
    >>> while replicas.begin_step() < steps:        # who is there? may load a newer state   # doctest: +SKIP
    ...     backward(state.sampler.batch(replicas.rank, replicas.ranks))
    ...     if replicas.all_reduce(gradients):      # False: a replica was lost; repeat the step
    ...         state.optimizer.step()
    ...         state.commit(replicas.round)
    >>> replicas.close()                                                       # doctest: +SKIP

    Args:
        me, hosts, limits: of the rendezvous; a host for each replica group.
        state: what a replica that heals is given. With several ranks in a group, that of this rank.
        inner: the ranks of this replica group; None: this process alone.
        run_id: of the rendezvous.

    Attributes:
        rank, ranks: of this replica group among those that are there.
        round: its number.
        healed: how many bytes of state were received, in all.
    """

    def __init__(
        self,
        me: str,
        hosts: Sequence[str],
        limits: Limits,
        state: TrainingState,
        inner: dist.ProcessGroup | None = None,
        timeout: float = 60.0,
        run_id: str = RUN_ID,
    ) -> None:
        self.me, self.state, self.inner, self.timeout = me, state, inner, timedelta(seconds=timeout)
        self.limits = limits
        self.inner_rank = dist.get_rank(inner) if inner is not None else 0
        self.rank = self.ranks = self.round = self.healed = 0
        self.group: ProcessGroupGloo | None = None
        self._someone_waits = False
        if self.inner_rank == 0:  # one rank of the group speaks for it
            self._store = open_store(me)
            self._rendezvous = Rendezvous(me, hosts, Stores(limits.patience), limits, run_id=run_id)

    def begin_step(self) -> int:
        """Wait until this replica group is in a round whose members are all connected and have the same state.

        Returns:
            How many steps are done in this state. A replica that heals may find that none is left.

        Raises:
            RuntimeError: no round was formed within ``limits.give_up`` seconds, or the run was ended.
        """
        if ended := self._be_in_a_round():
            self._part()
            raise RuntimeError(f"the run was ended: {ended}")
        return self.state.step

    def all_reduce(self, tensors: Iterable[Tensor]) -> bool:
        """Sum over the replica groups, in place. False: one was lost, and the tensors hold nothing of use."""
        waits = torch.tensor([float(self._waits())])
        try:
            for tensor in (*tensors, waits):
                self.group.allreduce([tensor]).wait()
            worked = True
        except RuntimeError:
            worked = False
        if self.inner is not None:
            everywhere = torch.tensor([worked])
            dist.all_reduce(everywhere, op=dist.ReduceOp.MIN, group=self.inner)
            worked = bool(everywhere)
        if not worked:
            self._disconnect()
            self._lost(self.round)
        self._someone_waits = worked and bool(waits)  # known to all, so all re-form before the same step
        return worked

    def close(self) -> None:
        """Go when all replica groups of the round have called this: one whose last sum broke is healed before."""
        with contextlib.suppress(RuntimeError):  # nobody else came, and this one has done its steps
            while not self._be_in_a_round() and not self._all_are_done():
                time.sleep(LOOK)
        self._disconnect()
        if self.inner_rank == 0:
            self._rendezvous.end("done")
        self._part()

    # ---- rounds ----

    def _be_in_a_round(self) -> str:
        """Connect with the members of the round, and heal. Returns why the run was ended; "": it was not."""
        until = time.monotonic() + self.limits.give_up
        while True:
            number, members, host, ended = self._agree()
            if ended or (number and number == self.round and self.group is not None):
                return ended
            self._disconnect()
            if number:
                try:
                    self._connect(number, members, host)
                    self._heal()
                    self.round = number
                    return ""
                except RuntimeError:  # another one was lost in the meantime
                    self._lost(number)
            if time.monotonic() > until:
                raise RuntimeError(f"no round of replicas was formed in {self.limits.give_up:g} s")
            time.sleep(LOOK)

    def _agree(self) -> tuple[int, tuple[str, ...], str, str]:
        """The round that this group is in (0: none yet), its members, the store's host, and why the run was ended."""
        found = None
        if self.inner_rank == 0:
            if self._someone_waits:
                self._rendezvous.reform(self.round)
            round = self._rendezvous.poll()
            ended = round.sentence if round.phase == ENDED else ""
            member = self._rendezvous.is_member()
            found = (round.number, round.members, round.host, ended) if member else (0, (), "", ended)
        self._someone_waits = False
        return self._as_first_rank(found)

    def _all_are_done(self) -> bool:
        return self._as_first_rank(self._rendezvous.all_done() if self.inner_rank == 0 else None)

    def _as_first_rank(self, found: Any) -> Any:
        """On all ranks of the group, what its first rank has found."""
        values = [found]
        if self.inner is not None:
            dist.broadcast_object_list(values, group=self.inner, group_src=0)
        return values[0]

    def _waits(self) -> bool:
        if self.inner_rank:
            return False
        seen = self._rendezvous.round
        return bool(seen.waiting) and len(seen.members) < self.limits.max_agents

    def _lost(self, number: int) -> None:
        if self.inner_rank == 0:
            self._rendezvous.reform(number)

    def _part(self) -> None:
        if self.inner_rank == 0:
            self._rendezvous.part()  # where the record is ends with this process

    # ---- the connection to the ranks of other groups that have the same place ----

    def _connect(self, number: int, members: Sequence[str], host: str) -> None:
        self.rank, self.ranks = members.index(self.me), len(members)
        client = dist.TCPStore(*split(host), is_master=False, wait_for_workers=False, timeout=self.timeout)
        meeting = dist.PrefixStore(f"replicas/{number}/{self.inner_rank}/", client)
        self.group = ProcessGroupGloo(meeting, self.rank, self.ranks, self.timeout)

    def _disconnect(self) -> None:
        """Whoever waits for this rank in a collective is told by the closed connection."""
        self.group = None

    def _heal(self) -> None:
        """Who is furthest gives its state to those that are not there.

        Two copies can have done equally many steps and still differ: a sum ends on one copy and breaks on another; a
        round without the first is formed, and repeats the step with other slices. So it is asked in which round the
        last step was done, too. Of two rounds the later one counts: the others go on from it.
        """
        state = self.state
        reached = torch.zeros(self.ranks, 2, dtype=torch.int64)
        reached[self.rank] = torch.tensor([state.step, state.history[-1] if state.history else 0])
        self.group.allreduce([reached]).wait()
        places = [tuple(place) for place in reached.tolist()]
        newest = places.index(max(places))
        if min(places) == places[newest]:
            return
        packed = pack(self.state.state_dict()) if self.rank == newest else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(packed)])
        self.group.broadcast(length, newest).wait()
        packed = packed if self.rank == newest else torch.empty(int(length), dtype=torch.uint8)
        self.group.broadcast(packed, newest).wait()
        if places[self.rank] != places[newest]:
            self.state.load_state_dict(unpack(packed))
            self.healed += len(packed)
