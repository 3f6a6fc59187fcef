"""How agents agree on who trains: each takes part in rounds, whose record is in a store that all agents reach.

An agent changes the record (``rounds.py``) by compare-and-set: it reads the record, computes the next one, and writes
it only if nobody has changed it in between. So there is no leader. The organisation is that of torchelastic's dynamic
rendezvous (https://docs.pytorch.org/docs/stable/elastic/rendezvous.html). One thing is added: the loss of the store
is survived.

**Where the record is.** All agents are given the same list of hosts. Each agent opens a store at its own host, and all
use one of them. The first round is formed at the first host of the list, which must therefore be up at the start. When
the host in use dies, the members of the last round go to the first of them that still answers, and form a round there.
Its number is higher than that of the last one in any case, so a number never stands for two rounds. Whoever looks for
the run goes where the round with the highest number is.

**Whose record it is.** Each store has the id of its run, which the first agent that reaches it writes. Agents pass over
the stores of another run. An agent that could only begin its run in such a store is refused.

**What is assumed.** An agent dies or stops; it does not lie. No network cuts the agents into two groups that both live
on: against that, ``min_agents`` must be more than half of the hosts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from course_lib.elastic.limits import Limits
from course_lib.elastic.rounds import ENDED, OPEN, PHASES, SEALED, Round, end, join, leave, read, reopen, seal
from course_lib.elastic.stores import Store

RUN_ID = "none"  # of a run that was given no id, as in torchrun
LOOK_AGAIN = 0.75  # seconds after which an agent that waits asks all hosts again


class Rendezvous:
    """Takes part in the rounds for one agent. ``poll`` is called again and again, and never waits.

    Args:
        me: the host of this agent, one of ``hosts``.
        hosts: of all agents that may ever take part, the same list everywhere.
        reach: gives the store of a host; ``ConnectionError`` if it does not answer.
        clock: seconds; only differences are used, so the machines' clocks need not agree.
        run_id: the same for all agents of a run, and another for each run: torchrun's ``--rdzv-id``.
    """

    def __init__(
        self,
        me: str,
        hosts: Sequence[str],
        reach: Callable[[str], Store],
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        run_id: str = RUN_ID,
    ) -> None:
        if me not in hosts:
            raise ValueError(f"{me} must be one of the hosts {', '.join(hosts)}")
        if not run_id:
            raise ValueError("run_id is empty; a run needs a name that no other run has")
        self.run_id = run_id
        self.me, self.hosts, self.reach, self.limits, self.clock = me, list(hosts), reach, limits, clock
        self.round = Round(0)  # as last seen; 0: none yet
        self.host: str | None = None  # where the record is
        self.store: Store | None = None
        # Number and host of the last round that this agent joined; an agent before it at its host does not count.
        self.joined = (0, "")
        self._beats: dict[str, tuple[int, float]] = {}  # host -> its heartbeats, and when they last changed
        self._last_beat = self._last_look = -1e9
        self._quorum_since: tuple[int, float] | None = None  # number of the round, time
        self._said: set[str] = set()  # what this agent has counted itself for
        self._silent: dict[str, float] = {}  # host -> when it did not answer

    def poll(self) -> Round:
        """One heartbeat, at most one change of the round. Returns the round as it is now, or was last seen.

        Raises:
            ValueError: the host at which the run would begin belongs to another run.
        """
        try:
            if self.store is None or self._should_look():
                self._look_for_the_record()
            self._beat()
            if self.store is not None:
                self._change(self._next)
        except ConnectionError:
            self._lose_store()
        return self.round

    def is_member(self) -> bool:
        """Whether a sealed round is there to be run by this agent."""
        round = self.round
        return (
            round.phase == SEALED and self.me in round.members and self.joined == (round.number, round.host)
        )

    def reform(self, number: int) -> None:
        """Ask for the round after ``number``: a rank has died, or a late comer waits."""
        self._try(lambda round: reopen(round, number))

    def leave(self) -> None:
        self._try(lambda round: leave(round, self.me))

    def end(self, sentence: str) -> None:
        """The run is over, for all."""
        self._try(lambda round: end(round, sentence))

    def part(self) -> None:
        """Wait until this agent can go after the end of a run, but no longer than a store may take to answer."""
        until = time.monotonic() + self.limits.patience
        while not self.may_part() and time.monotonic() < until:
            time.sleep(0.02)

    def may_part(self) -> bool:
        """Whether this agent can go after the end of a run. Who has the record stays until all others have read it."""
        round = self.round
        try:
            if self.store is None or round.phase != ENDED:
                return True
            parted = self._count("parted")
            return round.host != self.me or parted >= len({*round.members, *round.waiting, self.me})
        except ConnectionError:
            return True

    def all_done(self) -> bool:
        """Whether all members of the sealed round have called this: each of them has done what it came for."""
        try:
            return self.is_member() and self._count(f"done/{self.round.number}") >= len(self.round.members)
        except ConnectionError:
            return False

    def _count(self, what: str) -> int:
        """How many agents have said this, each counted once; this one says it now."""
        count = self.store.add(what, 0 if what in self._said else 1)
        self._said.add(what)
        return count

    # ---- what this agent does next ----

    def _next(self, round: Round) -> Round:
        if round.phase == SEALED:
            if self.me in round.members and self.joined != (round.number, round.host):
                return reopen(round, round.number)  # listed, but the process that joined has died
            gone = [m for m in round.members if self._is_dead(m)]
            return leave(round, gone[0]) if gone else join(round, self.me)
        if round.phase == ENDED:
            return round
        if self.me not in round.members:
            return join(round, self.me) if len(round.members) < self.limits.max_agents else round
        gone = [m for m in (*round.members, *round.expected) if self._is_dead(m)]
        if gone:
            return leave(round, gone[0])
        return seal(round, self.hosts) if self._may_seal(round) else round

    def _may_seal(self, round: Round) -> bool:
        if len(round.members) < self.limits.min_agents:
            self._quorum_since = None  # the last call begins again with the next quorum
            return False
        if self._quorum_since is None or self._quorum_since[0] != round.number:
            self._quorum_since = round.number, self.clock()
        full = len(round.members) >= self.limits.max_agents
        all_here = bool(round.expected) and set(round.expected) <= set(round.members)
        return full or all_here or self.clock() - self._quorum_since[1] >= self.limits.last_call

    def _beat(self) -> None:
        if self.store is not None and self.clock() - self._last_beat >= self.limits.beat:
            self.store.add(f"beat/{self.me}", 1)
            self._last_beat = self.clock()

    def _is_dead(self, who: str) -> bool:
        """Whether its heartbeats have not changed for beat_timeout, by this agent's clock."""
        if who == self.me:
            return False
        count = self.store.add(f"beat/{who}", 0)
        if who not in self._beats or self._beats[who][0] != count:
            self._beats[who] = count, self.clock()
        return self.clock() - self._beats[who][1] > self.limits.beat_timeout

    def _change(self, change: Callable[[Round], Round]) -> None:
        """Compare and set, until nobody has changed the record in between."""
        text = self.store.compare_set("round", "", "")
        while True:
            before = replace(read(text), host=self.host)
            after = replace(change(before), host=self.host)
            if after == before:
                break
            wanted = json.dumps(asdict(after))
            text = self.store.compare_set("round", text, wanted)
            if text == wanted:
                break
        self.round = after
        if after.phase == OPEN and self.me in after.members:
            self.joined = (after.number, after.host)

    def _try(self, change: Callable[[Round], Round]) -> None:
        try:
            if self.store is None:
                self._look_for_the_record()
            if self.store is not None:
                self._change(change)
        except ConnectionError:
            self._lose_store()

    # ---- where the record is ----

    def _lose_store(self) -> None:
        """It is asked once more, over a new connection, when the record is looked for: it may only have been slow."""
        self.host = self.store = None

    def _should_look(self) -> bool:
        """Who trains need not look elsewhere. Who waits might wait where nobody comes."""
        return not self.is_member() and self.clock() - self._last_look > LOOK_AGAIN

    def _look_for_the_record(self) -> None:
        """Go where the highest round is; else, to the first member of the last round that answers."""
        self._last_look = self.clock()
        stores, others, best = {}, {}, None
        for place, host in enumerate(self.hosts):
            if self.clock() - self._silent.get(host, -1e9) < LOOK_AGAIN:
                continue
            try:
                store = self.reach(host)
                if (owner := store.compare_set("run", "", self.run_id)) != self.run_id:
                    others[host] = owner
                    continue
                stores[host] = store
                found = read(stores[host].compare_set("round", "", ""))
            except ConnectionError:
                stores.pop(host, None)
                self._silent[host] = self.clock()
                self._beat()  # to ask a host that does not answer takes long, and others wait for a sign of life
                continue
            rank = (found.number, PHASES.index(found.phase), bool(found.members), -place)
            if best is None or rank > best[0]:
                best = rank, host, found
        if best is not None and best[2] != Round() and best[2].number >= self.round.number:
            self._go_to(best[1], stores[best[1]])
        elif self.round.number == 0:  # nothing has begun anywhere
            if owner := others.get(self.hosts[0]):
                raise ValueError(
                    f"the store at {self.hosts[0]} belongs to the run {owner!r}, and this agent to the run "
                    f"{self.run_id!r}: give it the id of that run, or the hosts of its own"
                )
            if self.hosts[0] in stores:
                self._go_to(self.hosts[0], stores[self.hosts[0]])
        elif self.store is None:  # the record is lost: the first one left opens the next round
            was = self.round
            left = [h for h in self.hosts if h in stores and h in (*was.members, *was.expected, *was.waiting)]
            if left:
                self._go_to(left[0], stores[left[0]])
                opened = Round(was.number + 1, expected=tuple(left))
                self._change(lambda r: r if r.number >= opened.number else opened)

    def _go_to(self, host: str, store: Store) -> None:
        if host != self.host:
            self.host, self.store = host, store
            self._beats, self._last_beat, self._quorum_since = {}, -1e9, None
