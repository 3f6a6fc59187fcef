"""One agent's turn, without processes: the round that its ranks are given is the one that was sealed."""

from types import SimpleNamespace

from course_lib.elastic.agent import Agent, Job
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


def test_a_round_that_is_sealed_between_two_looks_of_a_turn_is_taken_as_it_was_sealed():
    """The agent reads the open round, then asks for a new one because its rank lost a peer; in between it is sealed.

    Once it took the members of the open round, in the order in which they had joined: two ranks had one number.
    """
    store = DictStore()
    first, last = (Rendezvous(host, HOSTS, lambda _: store, LIMITS) for host in (HOSTS[0], HOSTS[2]))
    agent = Agent(Job(HOSTS[1], HOSTS, b"", LIMITS))
    agent.rendezvous = Rendezvous(HOSTS[1], HOSTS, lambda _: store, LIMITS)
    agent.workers = [worker := Worker()]
    for _ in range(3):
        for rendezvous in (first, last, agent.rendezvous):
            rendezvous.poll()
    agent._turn()
    worker.busy, worker.outcome = False, Outcome("lost", "connection closed", 1)
    first.reform(1)
    last.poll()
    first.poll()  # they join in another order than that of the hosts
    poll = agent.rendezvous.poll

    def others_seal_after_poll():
        poll()
        assert agent.rendezvous.round.members == (HOSTS[2], HOSTS[0], HOSTS[1])
        last.poll()

    agent.rendezvous.poll = others_seal_after_poll
    agent._turn()
    agent.rendezvous.poll = poll
    agent._turn()
    assert last.round.members == HOSTS
    assert [(p.round, p.rank, p.ranks) for p in worker.places] == [(1, 1, 3), (2, 1, 3)]
    assert agent.round == last.round
