"""The rounds, in simulated time: no process, no sleep. A hundred runs of random kills, joins and pauses end well."""

import random
from dataclasses import replace
from functools import partial

import pytest

from course_lib.elastic import rounds
from course_lib.elastic.limits import Limits
from course_lib.elastic.rendezvous import Rendezvous
from course_lib.elastic.rounds import ENDED, OPEN, SEALED, Round
from course_lib.elastic.stores import DictStore

LIMITS = Limits(min_agents=2, max_agents=4, last_call=1.0, beat=0.2, beat_timeout=1.5)
HOSTS = [f"10.0.0.{i}:29400" for i in range(4)]
TICK = 0.1


class SlowStore(DictStore):
    """When its host is slow, many calls are not answered in time."""

    def __init__(self, machines):
        super().__init__()
        self.machines = machines

    def _check(self):
        super()._check()
        if (
            any(self.machines.stores[h] is self for h in self.machines.slow)
            and self.machines.random.random() < 0.2
        ):
            raise ConnectionError("no answer in time")


class Machines:
    """Simulated machines, each with a store and an agent's rendezvous; time goes on in ticks."""

    def __init__(self, hosts=HOSTS, limits=LIMITS, seed=0, run_id="a"):
        self.run_id = run_id
        self.hosts, self.limits, self.now = hosts, limits, 0.0
        self.stores, self.agents, self.paused, self.slow = {}, {}, set(), set()
        self.random = random.Random(seed)

    def start(self, *indices):
        for i in indices:
            host = self.hosts[i]
            self.stores[host] = SlowStore(self)
            self.agents[host] = Rendezvous(
                host, self.hosts, self.reach, self.limits, lambda: self.now, self.run_id
            )

    def reach(self, host):
        if host not in self.stores or not self.stores[host].alive or self.stores[host].stopped:
            raise ConnectionError(host)
        return self.stores[host]

    def kill(self, i):
        host = self.hosts[i]
        self.stores[host].alive = False
        del self.agents[host]
        self.paused.discard(host)
        self.slow.discard(host)

    def slow_down(self, i):
        self.slow ^= {self.hosts[i]}

    def pause(self, i, paused=True):
        host = self.hosts[i]
        self.stores[host].stopped = paused
        (self.paused.add if paused else self.paused.discard)(host)

    def tick(self):
        self.now += TICK
        order = list(self.agents)
        self.random.shuffle(order)
        for host in order:
            agent = self.agents[host]
            if host not in self.paused:
                agent.poll()
                full = len(agent.round.members) >= self.limits.max_agents
                if agent.is_member() and agent.round.waiting and not full:
                    agent.reform(agent.round.number)

    def until(self, done, seconds):
        began = self.now
        while not done():
            assert self.now - began < seconds, [a.round for a in self.agents.values()]
            self.tick()
        return self.now - began

    def running_rounds(self):
        """Sealed rounds that all of their living members know of: only those can train."""
        known = {h: a.round.members if a.is_member() else () for h, a in self.agents.items()}
        return {m for m in known.values() if m and all(known.get(h, m) == m for h in m)}

    def two_rounds_of_one_number(self):
        """Members of two rounds would take them for one: their ranks would wait for each other at different hosts."""
        rounds = {a.round for a in self.agents.values() if a.is_member()}
        known = {(r.number, r.members, r.host) for r in rounds}
        return len({number for number, *_ in known}) < len(known)

    def together(self, *indices):
        """Exactly these agents are in one sealed round."""
        members = tuple(self.hosts[i] for i in indices)
        agents = [self.agents[h] for h in members]
        return all(a.is_member() and a.round.members == members for a in agents) and (
            len({a.round.number for a in agents}) == 1
        )


def test_a_lost_quorum_ends_the_last_call():
    """The next quorum waits for the whole time again, so that those who come late are still in the round."""
    machines = Machines(limits=replace(LIMITS, last_call=5.0))
    machines.start(0, 1)
    machines.until(lambda: len(machines.agents[HOSTS[0]].round.members) == 2, 1)
    machines.kill(1)
    machines.until(lambda: len(machines.agents[HOSTS[0]].round.members) == 1, 3)
    machines.tick()  # the one that is left sees that it is alone
    machines.start(2)
    assert machines.until(lambda: machines.together(0, 2), 10) >= 5.0


def test_changes_that_do_not_apply_change_nothing():
    open_ = Round(3, members=("a",))
    assert rounds.reopen(open_, 3) == open_
    sealed = rounds.seal(open_, ["a"])
    assert sealed.phase == SEALED
    assert rounds.reopen(sealed, 2) == sealed
    late = rounds.join(sealed, "b")
    assert late.members == ("a",)
    assert late.waiting == ("b",)
    again = rounds.reopen(late, 3)
    assert (again.number, again.phase, again.members, again.expected) == (4, OPEN, (), ("a", "b"))
    assert rounds.leave(sealed, "x") == sealed
    assert rounds.leave(sealed, "a").number == 4
    ended = rounds.end(sealed, "done")
    assert ended.phase == ENDED
    for change in (lambda r: rounds.join(r, "b"), lambda r: rounds.leave(r, "a")):
        assert change(ended) == ended


def test_a_full_round_is_sealed_at_once_and_a_smaller_one_after_the_last_call():
    machines = Machines()
    machines.start(0, 1, 2, 3)
    assert machines.until(lambda: machines.together(0, 1, 2, 3), 1) < 0.5
    machines = Machines()
    machines.start(0, 2)
    assert LIMITS.last_call <= machines.until(lambda: machines.together(0, 2), 3) < 1.5
    alone = Machines()
    alone.start(0)
    for _ in range(400):
        alone.tick()
    assert alone.agents[HOSTS[0]].round.phase == OPEN, "one agent is no quorum of two"


def test_a_late_comer_a_dead_member_and_one_that_leaves():
    machines = Machines()
    machines.start(0, 1, 2)
    machines.until(lambda: machines.together(0, 1, 2), 3)
    machines.start(3)
    assert machines.until(lambda: machines.together(0, 1, 2, 3), 3) < 1
    machines.kill(2)
    took = machines.until(lambda: machines.together(0, 1, 3), 5)
    assert took < LIMITS.beat_timeout + 0.5, "no last call: all who are expected are here"
    machines.agents[HOSTS[1]].leave()
    del machines.agents[HOSTS[1]]
    assert machines.until(lambda: machines.together(0, 3), 5) < 0.5


@pytest.mark.parametrize("dead", range(4))
def test_the_loss_of_any_one_agent_is_survived_also_of_the_one_that_hosts_the_store(dead):
    machines = Machines()
    machines.start(0, 1, 2, 3)
    machines.until(lambda: machines.together(0, 1, 2, 3), 3)
    machines.kill(dead)
    left = [i for i in range(4) if i != dead]
    assert machines.until(lambda: machines.together(*left), 5) < 2.5
    assert machines.agents[HOSTS[left[0]]].host == HOSTS[0 if dead else 1]
    machines.start(dead)  # its store is empty now, and first in the order when it is host 0
    machines.until(lambda: machines.together(0, 1, 2, 3), 5)
    assert machines.agents[HOSTS[0]].host == HOSTS[0 if dead else 1], "the run stays where it is"


def test_a_host_of_the_store_that_was_paused_comes_back_as_a_late_comer():
    machines = Machines()
    machines.start(0, 1, 2, 3)
    machines.until(lambda: machines.together(0, 1, 2, 3), 3)
    machines.pause(0)
    machines.until(lambda: machines.together(1, 2, 3), 5)
    for _ in range(100):
        machines.tick()
    machines.pause(0, False)
    machines.until(lambda: machines.together(0, 1, 2, 3), 10)


def test_one_answer_that_comes_too_late_does_not_move_the_record():
    machines = Machines()
    machines.start(0, 1, 2, 3)
    machines.until(lambda: machines.together(0, 1, 2, 3), 3)
    number = machines.agents[HOSTS[0]].round.number
    for i in range(4):
        machines.agents[HOSTS[i]]._lose_store()
    for _ in range(50):
        machines.tick()
    assert machines.together(0, 1, 2, 3)
    assert {(a.round.number, a.round.host) for a in machines.agents.values()} == {(number, HOSTS[0])}


def test_a_record_that_is_opened_elsewhere_has_a_number_of_its_own():
    """One agent takes the store for lost while the round is still open; the others do not."""
    machines = Machines()
    machines.start(0, 1)
    machines.until(lambda: machines.agents[HOSTS[1]].joined == (1, HOSTS[0]), 3)
    lonely = machines.agents[HOSTS[1]]
    lonely._lose_store()
    lonely._silent[HOSTS[0]] = machines.now
    lonely.poll()
    assert (lonely.round.number, lonely.round.host) == (2, HOSTS[1])
    while not machines.together(0, 1):
        assert machines.now < 20
        machines.tick()
        assert not machines.two_rounds_of_one_number()


def test_the_host_of_the_record_stays_until_the_others_have_read_how_the_run_ended():
    machines = Machines()
    machines.start(0, 1, 2)
    machines.until(lambda: machines.together(0, 1, 2), 3)
    first, *others = machines.agents.values()
    assert first.may_part(), "the run goes on: whoever leaves now does not wait"
    first.end("done")
    assert not first.may_part()
    for other in others:
        other.poll()
        assert other.round.sentence == "done"
        assert other.may_part()
        assert other.may_part()
        assert first.may_part() == (other is others[-1])


def test_all_are_done_when_each_member_of_the_round_has_said_so():
    machines = Machines()
    machines.start(0, 1, 2)
    assert not machines.agents[HOSTS[0]].all_done(), "there is no round yet"
    machines.until(lambda: machines.together(0, 1, 2), 3)
    first, *others = machines.agents.values()
    for agent in (first, first, *others):
        assert agent.all_done() == (agent is others[-1])
    first.reform(first.round.number)
    machines.until(lambda: machines.together(0, 1, 2), 3)
    assert not others[-1].all_done(), "they said it of another round"


def test_an_agent_that_was_started_again_at_the_same_host_before_its_death_was_noticed():
    machines = Machines()
    machines.start(0, 1, 2, 3)
    machines.until(lambda: machines.together(0, 1, 2, 3), 3)
    before = machines.agents[HOSTS[1]].round.number
    machines.kill(3)
    machines.start(3)
    machines.tick()
    machines.until(lambda: machines.together(0, 1, 2, 3), 5)
    assert machines.agents[HOSTS[1]].round.number > before


def test_an_agent_of_another_run_is_refused_and_disturbs_nobody():
    """Run b was given two hosts of run a, in whose stores it would have joined."""
    ours = Machines()
    ours.start(0, 1, 2)
    ours.until(lambda: ours.together(0, 1, 2), 3)
    before = ours.stores[HOSTS[0]].values["round"]
    theirs = Machines([HOSTS[0], "10.0.0.9:29400"], run_id="b")
    theirs.stores = ours.stores
    theirs.start(1)
    with pytest.raises(ValueError) as refused:
        theirs.tick()
    assert str(refused.value) == (
        "the store at 10.0.0.0:29400 belongs to the run 'a', and this agent to the run 'b': "
        "give it the id of that run, or the hosts of its own"
    )
    assert ours.stores[HOSTS[0]].values["round"] == before
    with pytest.raises(ValueError, match="run_id is empty"):
        Rendezvous(HOSTS[0], HOSTS, ours.reach, LIMITS, run_id="")


def test_a_run_passes_over_the_store_of_another_run():
    """Host 1 has a record of run b with a higher number. Run a loses host 0, and meets at host 2."""
    theirs = Machines(HOSTS[1:2], Limits(min_agents=1, max_agents=1), run_id="b")
    theirs.start(0)
    theirs.until(lambda: theirs.together(0), 3)
    for number in range(1, 6):
        theirs.agents[HOSTS[1]].reform(number)
        theirs.until(lambda: theirs.together(0), 3)
    assert theirs.agents[HOSTS[1]].round.number == 6
    ours = Machines()
    ours.stores = theirs.stores
    ours.start(0, 2, 3)
    ours.until(lambda: ours.together(0, 2, 3), 3)
    ours.kill(0)
    ours.until(lambda: ours.together(2, 3), 5)
    assert ours.agents[HOSTS[3]].host == HOSTS[2]
    assert theirs.together(0)


@pytest.mark.parametrize("seeds", [range(k, k + 10) for k in range(0, 100, 10)], ids=str)
def test_random_kills_joins_and_pauses(seeds):
    """A hundred runs. At no time do two rounds run, and in the end all agents are together."""
    for seed in seeds:
        random_run(seed, pauses=bool(seed % 2))


def random_run(seed, pauses, events=6):
    """With pauses, more than half of the hosts are needed: a paused agent is not dead, and would go on with others."""
    hosts = [f"10.0.0.{i}:29400" for i in range(5)]
    fewest = 3 if pauses else 1
    machines = Machines(hosts, Limits(min_agents=fewest, max_agents=5, last_call=0.5), seed)
    choose = random.Random(1000 + seed)
    machines.start(*range(5))
    machines.until(lambda: machines.together(*range(5)), 5)
    for _ in range(events):
        up = [i for i, h in enumerate(hosts) if h in machines.agents]
        running = [i for i in up if hosts[i] not in machines.paused]
        down = [i for i in range(5) if i not in up]
        changes = {
            machines.kill: running if len(running) > fewest else [],
            machines.pause: running if pauses and len(running) > fewest else [],
            machines.start: down,
            partial(machines.pause, paused=False): [i for i in up if i not in running],
            machines.slow_down: up if pauses else [],
        }
        change, whom = choose.choice([(c, i) for c, i in changes.items() if i])
        change(choose.choice(whom))
        settled = choose.random() < 0.5  # the other half of the events come while one is being handled
        for _ in range(30 if settled else choose.randrange(1, 15)):
            machines.tick()
            assert len(machines.running_rounds()) < 2, f"seed {seed}: two rounds at once"
            assert not machines.two_rounds_of_one_number(), f"seed {seed}"
    machines.slow.clear()
    for i, host in enumerate(hosts):
        if host in machines.paused:
            machines.pause(i, False)
        if host not in machines.agents:
            machines.start(i)
    machines.until(lambda: machines.together(*range(5)), 15)
