"""One agent's turn, without processes: the round that its ranks are given is the one that was sealed."""

from types import SimpleNamespace

from course_lib.elastic.agent import DONE, Agent, Ended, Job
from course_lib.elastic.limits import Limits
from course_lib.elastic.rendezvous import Rendezvous
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


def begin_together():
    """Three agents in their first round: the rendezvous of two, and the second agent with its worker."""
    store = DictStore()
    first, last = (Rendezvous(host, HOSTS, lambda _: store, LIMITS) for host in (HOSTS[0], HOSTS[2]))
    agent = Agent(Job(HOSTS[1], HOSTS, b"", LIMITS))
    agent.rendezvous = Rendezvous(HOSTS[1], HOSTS, lambda _: store, LIMITS)
    agent.workers = [worker := Worker()]
    for _ in range(3):
        for rendezvous in (first, last, agent.rendezvous):
            rendezvous.poll()
    agent._turn()
    assert [p.round for p in worker.places] == [1]
    worker.busy, worker.outcome = False, Outcome("lost", "connection closed", 1)
    return first, agent, worker, last


def test_a_round_that_is_sealed_between_two_looks_of_a_turn_is_taken_as_it_was_sealed():
    """The agent reads the open round, then asks for a new one because its rank lost a peer; in between it is sealed.

    Once it took the members of the open round, in the order in which they had joined: two ranks had one number.
    """
    first, agent, worker, last = begin_together()
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


def test_why_a_rank_lost_its_peers_is_no_result():
    """Another agent's rank came to the end, and this one's did not: training is done."""
    first, agent, _, _ = begin_together()
    first.end(DONE)
    assert agent._turn() == Ended(DONE, {})
