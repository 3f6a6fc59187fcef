"""A replica is killed: the others repeat the step without it. It comes back and gets the state from a peer."""

import os
from collections import Counter
from functools import partial

import pytest
import torch
import torch.distributed as dist
from digits_alone import digits_alone

from course_lib.elastic.demo import StagedReplicas, new_state, train_replica
from course_lib.elastic.limits import Limits
from course_lib.elastic.replica_fleet import ReplicaFleet
from course_lib.elastic.replicas import Replicas
from course_lib.elastic.stores import free_hosts
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh

PATIENT = 250  # seconds: a limit for a machine that is busy
LIMITS = Limits(min_agents=2, max_agents=3, last_call=60, beat_timeout=20, give_up=200)  # all begin together
STEPS = 60


def is_one_device(results, steps):
    """All copies are equal to the bit, and to one device but for rounding."""
    _, alone = digits_alone(steps)
    for name, weights in alone.items():
        for result in results:
            assert torch.equal(result["model"][name], results[0]["model"][name])
            torch.testing.assert_close(result["model"][name], weights, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("in_a_sum", [True, False])
def test_a_replica_drops_out_and_heals(in_a_sum):
    """The one that hosts the store dies in the sum of step 11, or is killed before; from step 31 on there are three."""
    staged = partial(StagedReplicas, together={1: 3, 31: 3} if in_a_sum else {1: 3, 11: 2, 31: 3})
    first = partial(staged, fatal=11 if in_a_sum else 0)
    with ReplicaFleet(train_replica, 3, LIMITS) as fleet:
        pids = [fleet.start(i, STEPS, 0.0, staged if i else first) for i in range(3)]
        fleet.wait_until(lambda journal: len(journal.of("step", step=10)) == 3, PATIENT)
        if not in_a_sum:
            fleet.kill(0)
        fleet.wait_until(lambda journal: journal.of("step", step=30), PATIENT)
        fleet.start(0, STEPS, 0.0, staged)
        results = fleet.wait(PATIENT)
    journal = fleet.journal
    assert {e["pid"] for e in journal.of("lost")} == (set(pids[1:]) if in_a_sum else set())
    assert {e["pid"] for e in journal.of("step", step=60)} > set(pids[1:]), (
        "the others went on in their processes"
    )
    assert [result["healed"] > 0 for result in results] == [True, False, False]
    history = results[1]["history"]
    assert journal.samples(history) == Counter({i: STEPS // 15 for i in range(1437)})
    ranks = {number: {e["ranks"] for e in journal.of("step", round=number)} for number in set(history)}
    assert [ranks[number] for number in history] == [{3}] * 10 + [{2}] * 20 + [{3}] * 30
    is_one_device(results, STEPS)
    assert not os.path.exists(fleet.folder.name)


class LastSumBreaks(Replicas):
    """The sum of the last step ends on the others, and here the connection breaks."""

    def all_reduce(self, tensors):
        worked = super().all_reduce(tensors)
        if not worked or self.state.step + 1 < STEPS or self.healed:
            return worked
        self._disconnect()
        self._lost(self.round)
        return False


def train_and_lose_the_last_sum(*args):
    *given, breaks = args
    return train_replica(*given, 0.0, LastSumBreaks if breaks else Replicas)


def test_who_is_done_waits_for_a_replica_whose_last_sum_broke():
    """It gets the last step from the other, instead of waiting alone for a round of two."""
    limits = Limits(min_agents=2, max_agents=2, beat_timeout=20, give_up=200)
    with ReplicaFleet(train_and_lose_the_last_sum, 2, limits) as fleet:
        fleet.start(0, STEPS, False)
        fleet.start(1, STEPS, True)
        results = fleet.wait(PATIENT)
    assert [result["healed"] > 0 for result in results] == [False, True]
    assert [result["step"] for result in results] == [STEPS, STEPS]
    assert len(fleet.journal.of("lost", step=STEPS)) == 1
    is_one_device(results, STEPS)


def test_one_of_two_replicas_dies_in_a_step_and_the_other_goes_on_with_the_same_step():
    """As chapter 20 shows it: step 11 is repeated by one replica, and from step 21 on there are two again."""
    limits = Limits(min_agents=1, max_agents=2, last_call=1, beat_timeout=20, give_up=200)
    staged = partial(StagedReplicas, together={1: 2, 21: 2})
    with ReplicaFleet(train_replica, 2, limits) as fleet:
        survivor = fleet.start(0, 30, 0.0, staged)
        fleet.start(1, 30, 0.0, partial(staged, fatal=11))
        fleet.wait_until(lambda journal: journal.of("step", step=20), PATIENT)
        fleet.start(1, 30, 0.0, staged)
        results = fleet.wait(PATIENT)
    done = [(e["step"], e["ranks"]) for e in fleet.journal.of("step", pid=survivor)]
    assert done == [(step, 1 if 11 <= step <= 20 else 2) for step in range(1, 31)]
    assert [result["healed"] > 0 for result in results] == [False, True]
    assert fleet.journal.samples(results[0]["history"]) == Counter({i: 2 for i in range(1437)})
    is_one_device(results, 30)
    with pytest.raises(ValueError, match="replicas is 0"):
        ReplicaFleet(train_replica, 0, limits)


def equally_far(hosts):
    """Both have done three steps, but replica 0 did the last one in a round that replica 1 was not in."""
    rank = dist.get_rank()
    state = new_state(1437)
    torch.nn.init.constant_(state.model[1].weight, rank)
    for number in ([1, 1, 1], [1, 1, 2])[rank]:
        state.commit(number)
    limits = Limits(min_agents=2, max_agents=2, beat_timeout=20, give_up=200)
    replicas = Replicas(hosts[rank], hosts, limits, state)
    replicas.begin_step()
    together = replicas.all_reduce([torch.ones(1)])  # neither ends before the other has what it needs
    return together, replicas.healed > 0, state.history, state.model[1].weight


def test_copies_that_are_equally_far_and_differ_are_made_equal():
    results = launch(equally_far, 2, args=(free_hosts(2),), timeout=PATIENT)
    assert all(together for together, *_ in results)
    assert [healed for _, healed, *_ in results] == [True, False]
    assert [history for _, _, history, _ in results] == [[1, 1, 2]] * 2, "the later round counts"
    assert all(bool((weight == 1).all()) for *_, weight in results)


def groups_of_two(hosts):
    """Four ranks are two replica groups of two; each rank has one half of the gradient, other in each."""
    mesh = make_mesh({"replica": 2, "inner": 2})
    replica, inner = mesh["replica"].get_local_rank(), mesh["inner"].get_local_rank()
    limits = Limits(min_agents=2, max_agents=2, beat_timeout=20, give_up=200)
    replicas = Replicas(hosts[replica], hosts, limits, new_state(1437), inner=mesh["inner"].get_group())
    replicas.begin_step()
    gradient = torch.full((3,), float(10 * replica + inner))
    assert replicas.all_reduce([gradient])
    if replica == 0 and inner == 1:
        replicas.group = BrokenConnection()
    return replicas.rank, gradient.tolist(), replicas.all_reduce([torch.ones(1)])


class BrokenConnection:
    def allreduce(self, tensors):
        raise RuntimeError("Connection reset by peer")


def test_ranks_of_a_replica_group_take_a_step_together_or_not_at_all():
    results = launch(groups_of_two, 4, args=(free_hosts(2),), timeout=PATIENT)
    assert [rank for rank, _, _ in results] == [0, 0, 1, 1]
    assert [gradient[0] for _, gradient, _ in results] == [10.0, 12.0, 10.0, 12.0]
    assert not any(worked for _, _, worked in results), "the connection of one rank broke"
