"""One agent's turn, without processes: the round that its ranks are given is the one that was sealed."""

from functools import partial
from types import SimpleNamespace

import pytest

from course_lib.elastic.agent import DONE, Agent, Ended, Job
from course_lib.elastic.limits import Limits
from course_lib.elastic.rendezvous import Rendezvous
from course_lib.elastic.rounds import ENDED
from course_lib.elastic.stores import DictStore
from course_lib.elastic.worker import Outcome

HOSTS = tuple(f"10.0.0.{i}:29400" for i in range(3))
LIMITS = Limits(min_agents=3, max_agents=3)


class Worker:
    """Of a rank that has nothing to do; keeps the places that it is given."""

    def __init__(self):
        self.busy, self.outcome, self.rank, self.places = False, None, 0, []
        self.process = SimpleNamespace(raised=None, is_dead=lambda: False)

    def look(self):
        pass

    def begin(self, train, place):
        self.busy, self.outcome = True, None
        self.places.append(place)


class Clock:
    """The time of all agents; it goes on when it is told to."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr("course_lib.elastic.agent.time", clock := Clock())
    return clock


def start(clock, limits):
    """Three agents that have not begun: the rendezvous of two, and the second agent with its worker."""
    store = DictStore()
    make = partial(Rendezvous, hosts=HOSTS, reach=lambda _: store, limits=limits, clock=clock.monotonic)
    agent = Agent(Job(HOSTS[1], HOSTS, b"", limits))
    agent.rendezvous = make(HOSTS[1])
    agent.workers = [Worker()]
    return make(HOSTS[0]), agent, agent.workers[0], make(HOSTS[2])


def begin_together(clock, limits=LIMITS):
    """They have begun their first round, in which the agent's rank has lost a peer."""
    first, agent, worker, last = start(clock, limits)
    for _ in range(3):
        for rendezvous in (first, last, agent.rendezvous):
            rendezvous.poll()
    agent._turn()
    assert [p.round for p in worker.places] == [1]
    worker.busy, worker.outcome = False, Outcome("lost", "connection closed", 1)
    return first, agent, worker, last


def test_a_round_that_is_sealed_between_two_looks_of_a_turn_is_taken_as_it_was_sealed(clock):
    """The agent reads the open round, then asks for a new one because its rank lost a peer; in between it is sealed.

    Once it took the members of the open round, in the order in which they had joined: two ranks had one number.
    """
    first, agent, worker, last = begin_together(clock)
    first.reform(1)
    last.poll()
    first.poll()  # they join in another order than that of the hosts
    poll = agent.rendezvous.poll

    def others_seal_after_poll():
        seen = poll()
        assert seen.members == (HOSTS[2], HOSTS[0], HOSTS[1])
        last.poll()
        return seen

    agent.rendezvous.poll = others_seal_after_poll
    agent._turn()
    agent.rendezvous.poll = poll
    agent._turn()
    assert last.round.members == HOSTS
    assert [(p.round, p.rank, p.ranks) for p in worker.places] == [(1, 1, 3), (2, 1, 3)]
    assert agent.round == last.round


def test_why_a_rank_lost_its_peers_is_no_result(clock):
    """Another agent's rank came to the end, and this one's did not: training is done."""
    first, agent, _, _ = begin_together(clock)
    first.end(DONE)
    assert agent._turn() == Ended(DONE, {})


@pytest.mark.parametrize("forming", [False, True])
def test_an_agent_that_was_stopped_for_long_does_not_end_the_run_of_the_others(clock, forming):
    """Once it counted the time of the stop as time without a round, gave up, and ended the run for all."""
    limits = Limits(min_agents=2, max_agents=3, give_up=15)
    first, agent, worker, last = begin_together(clock, limits)
    for _ in range(40):  # the agent is stopped
        clock.now += 0.5
        first.poll()
        last.poll()
    assert last.round.members == (HOSTS[0], HOSTS[2])
    if forming:
        last.reform(last.round.number)
    assert agent._turn() is None
    assert last.poll().phase != ENDED
    for _ in range(3):
        agent._turn()
        if last.round.waiting:
            last.reform(last.round.number)
        first.poll()
        last.poll()
    agent._turn()
    assert last.round.members == HOSTS
    assert worker.places[-1].round == last.round.number


def test_an_agent_that_waits_while_others_train_does_not_give_up_and_one_without_others_does(clock):
    limits = Limits(min_agents=2, max_agents=2, last_call=0.1, give_up=15)
    first, agent, _, last = start(clock, limits)
    for _ in range(100):
        clock.now += 0.5
        first.poll()
        last.poll()
        assert agent._turn() is None
    ended, began = None, clock.now
    while ended is None:
        clock.now += 0.5
        ended = agent._turn()
    assert ended.sentence == "no round was formed in 15 s: 2 agents are needed, and 1 had joined"
    assert limits.give_up < clock.now - began < limits.give_up + limits.beat_timeout + 2
