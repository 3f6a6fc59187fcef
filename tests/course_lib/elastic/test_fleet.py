"""Real processes: ranks and agents are killed, others join, and training goes on; nothing is left running."""

import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import psutil
import pytest
import torch
import torch.distributed as dist
from digits_alone import digits_alone

from course_lib.elastic.checkpoints import Checkpoints
from course_lib.elastic.demo import new_state, train_digits
from course_lib.elastic.fleet import Fleet
from course_lib.elastic.journal import Journal
from course_lib.elastic.leftovers import what_is_left
from course_lib.elastic.limits import Limits
from course_lib.elastic.random_faults import random_run
from course_lib.elastic.reshard import reshard_flat
from course_lib.elastic.stores import ReachedStore, free_hosts, open_store, split
from course_lib.elastic.worker import Place, connected
from course_lib.runtime import RankError, launch
from course_lib.runtime.world import World
from simulator.predict.recovery import PHASES

PATIENT = 250  # seconds: a limit for a machine that is busy; nothing waits so long for its own sake
LIMITS = Limits(min_agents=2, max_agents=4, last_call=0.5, beat_timeout=20, give_up=200)


def wait_for(done, what):
    until = time.monotonic() + PATIENT
    while not done():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def check_nothing_is_left(journal, hosts, folder):
    """No process that wrote to the journal, no port, no file."""
    assert len({e["pid"] for e in journal.events} - {os.getpid()}) > 2
    wait_for(lambda: not what_is_left(journal, hosts, folder), "something is left")


def test_four_ranks_three_ranks_four_again_and_the_host_of_the_store_is_lost():
    """Rank 2 dies in the middle of an all-reduce; a new agent joins; then agent 0, whose store all use, is killed."""
    steps = 75
    limits = replace(LIMITS, last_call=10)  # all four begin together, also where one of them starts late
    with Fleet(train_digits, 4, args=(steps, 0.1, (12, 2, 4)), limits=limits) as fleet:
        fleet.wait_for_ranks(4, PATIENT)
        fleet.wait_for_ranks(3, PATIENT)
        [kill] = fleet.journal.of("kill")
        # One rank may write its step down before another does, so all three are waited for.
        survivors = [0, 1, 2]  # renumbered
        fleet.wait_until(lambda journal: journal.recovery(kill["time"]).ranks == survivors, PATIENT)
        recovery = fleet.journal.recovery(kill["time"])
        for rank in recovery.ranks:
            spans = recovery.of(rank)
            assert [span.name for span in spans] == list(PHASES)
            assert spans[0].start == 0
            assert all(a.end == b.start for a, b in itertools.pairwise(spans))
        fleet.add_agent()
        fleet.wait_for_ranks(4, PATIENT)
        assert not fleet.journal.of("step", step=steps), "training must not have ended: give it more steps"
        fleet.kill_agent(0)
        fleet.wait_for_ranks(3, PATIENT)
        results = fleet.wait(PATIENT)
        fleet.add_agent()
        assert len(fleet.wait(5)) == 3, "nobody waits for an agent that came after the end"
        assert {e["host"] for e in fleet.journal.of("round")} == {fleet.hosts[0], fleet.hosts[1]}
    assert [r["step"] for r in results] == [steps] * 3
    history = results[0]["history"]
    sizes = [ranks for _, _, ranks in fleet.journal.rounds()]
    later = iter(sizes)  # a round may close before a late agent reaches it: one more follows
    assert all(n in later for n in [4, 3, 4, 3]), sizes
    assert sizes[-1] == 3
    assert max(sizes) == 4
    assert history == sorted(history)
    assert fleet.journal.samples(history) == Counter({i: 5 for i in range(1437)}), "75 steps are 5 epochs"
    losses, weights = digits_alone(steps)
    measured = fleet.journal.losses()
    torch.testing.assert_close(
        torch.tensor([measured[i + 1] for i in range(steps)]), torch.tensor(losses), rtol=1e-3, atol=1e-4
    )
    for name, value in results[0]["model"].items():
        torch.testing.assert_close(value, weights[name], rtol=1e-2, atol=1e-3)
        assert all(torch.equal(value, r["model"][name]) for r in results)
    check_nothing_is_left(fleet.journal, fleet.hosts, fleet.folder.name)


def raises_at_step_2(session):
    for step in range(1, 4):
        if step == 2 and session.rank == 1:
            raise KeyError("the learner's own mistake")
        session.border(step)


def test_an_exception_and_a_lack_of_agents_end_the_run_with_one_sentence():
    with Fleet(raises_at_step_2, 2, limits=LIMITS) as fleet:
        with pytest.raises(
            RankError, match=r"^rank 1 raised KeyError: .*the learner's own mistake"
        ) as caught:
            fleet.wait(PATIENT)
        assert "raises_at_step_2" in str(caught.value), "the traceback is there, too"
    check_nothing_is_left(fleet.journal, fleet.hosts, fleet.folder.name)
    few = Limits(min_agents=2, max_agents=2, last_call=0.1, give_up=2.0)
    with Fleet(raises_at_step_2, 1, limits=few) as fleet, pytest.raises(RankError) as caught:
        fleet.wait(PATIENT)
    assert str(caught.value) == "no round was formed in 2 s: 2 agents are needed, and 1 had joined"


def hold(session, steps, folder):
    """Let ranks wait behind these steps until ``folder/<step>`` is there, so that it is known how far they are."""
    at_border = session.border

    def border(step, loss=None):
        session.journal.write("holds", step=step, rank=session.rank)
        while step in steps and not os.path.exists(f"{folder}/{step}"):
            time.sleep(0.02)
        at_border(step, loss)

    session.border = border


def train_to_40(session, folder):
    hold(session, [25], folder)
    return train_digits(session, 40)


def test_all_ranks_are_killed_at_once_and_go_on_from_the_last_checkpoint(tmp_path):
    saved = Checkpoints(tmp_path / "saved")
    (saved.folder / "notes").write_text("of the folder's owner")
    limits = replace(LIMITS, max_agents=2)
    fleet = Fleet(train_to_40, 2, args=(str(tmp_path),), limits=limits, restarts=1, checkpoints=saved.folder)
    with fleet:
        fleet.wait_until(lambda journal: len(journal.of("holds", step=25)) == 2, PATIENT)
        fleet.wait_until(lambda journal: saved.steps() == [10, 20], PATIENT)
        killed = fleet.kill_rank(0, 1)
        (tmp_path / "25").touch()
        results = fleet.wait(PATIENT)
    journal, history = fleet.journal, results[0]["history"]
    assert {e["step"] for e in journal.of("restored") if e["time"] > killed} == {20}
    assert history[19] < history[20], "the five steps after the checkpoint were done again"
    sampler, expected = new_state(1437).sampler, Counter()
    for _ in range(40):
        expected.update(sampler.next_batch(0, 1).tolist())
    assert journal.samples(history) == expected
    _, weights = digits_alone(40)
    for name, value in results[0]["model"].items():
        torch.testing.assert_close(value, weights[name], rtol=1e-2, atol=1e-3)
    assert saved.steps() == [30, 40]
    assert (saved.folder / "notes").exists(), "the fleet removes only its own folder"
    check_nothing_is_left(journal, fleet.hosts, fleet.folder.name)


def add_up_in_shards(session, folder):
    """13 numbers; step s adds s to the first, 2 s to the second, and so on. Each rank has a shard of them."""
    hold(session, [14, 16], folder)
    found, numel = session.restore_shards(), 13
    shards = reshard_flat(found["shards"] or [torch.zeros(numel)], numel, session.ranks)
    own, history = shards[session.rank], list(found["about"] or [])
    first = session.rank * len(own) + 1
    factors = torch.arange(first, first + len(own)) * (torch.arange(first, first + len(own)) <= numel)
    for step in range(found["step"] + 1, 21):
        own += step * factors
        history.append(session.round)
        session.peers.exchange(own, step, about=history)
        if step == 10:
            shards = [torch.empty_like(own) for _ in range(session.ranks)]
            dist.all_gather(shards, own)
            if session.rank == 0:
                session.checkpoints.save({"step": step, "shards": shards, "about": history}, step)
        session.border(step)
    return own.tolist(), history


def test_a_lost_shard_comes_from_a_peer_and_two_neighbours_shards_from_the_checkpoint(tmp_path):
    """Three ranks at step 14: rank 1 is killed. Three ranks at step 16: ranks 0 and 1 are killed, two ranks go on."""
    limits = replace(LIMITS, max_agents=3, last_call=30)
    fleet = Fleet(
        add_up_in_shards,
        3,
        args=(str(tmp_path),),
        limits=limits,
        restarts=1,
        checkpoints=tmp_path / "saved",
    )
    restored = []
    with fleet:
        for step, ranks in ((14, [1]), (16, [0, 1])):
            fleet.wait_until(lambda journal, step=step: len(journal.of("holds", step=step)) == 3, PATIENT)
            killed = fleet.kill_rank(*ranks)
            (tmp_path / str(step)).touch()
            restored.append(killed)
        results = fleet.wait(PATIENT)
    first, second = restored
    events = fleet.journal.of("restored")
    assert {e["step"] for e in events if first < e["time"] < second} == {14}, "from a peer's memory"
    assert {e["step"] for e in events if e["time"] > second} == {10}, "from the checkpoint"
    assert [len(own) for own, _ in results] == [7, 7]
    numbers = [x for own, _ in results for x in own][:13]
    assert numbers == [210.0 * k for k in range(1, 14)], "1 + 2 + ... + 20 = 210: each step counts once"
    history = results[0][1]
    assert len(history) == 20
    assert history[9] < history[10]
    check_nothing_is_left(fleet.journal, fleet.hosts, fleet.folder.name)


@pytest.mark.parametrize("seed", range(3))
def test_random_kills_joins_and_pauses_of_real_processes(seed):
    """Three of the hundred runs of ``benchmarks/elastic_faults.py``, of each only the first two things that happen."""
    report = random_run(seed, changes=2)
    assert report.is_good(), report
    assert report.ended == "done"


def one_is_alone_at_first(host):
    rank = dist.get_rank()
    place = Place(rank, 2, round=1, me=host, host=host, max_agents=2, timeout=0.3)
    if rank == 1:
        with pytest.raises(dist.DistError), connected(place):
            pass
    with connected(replace(place, round=2, timeout=PATIENT)):
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total)
        dist.barrier()
    return total.item()


def test_a_rank_that_could_not_connect_meets_the_others_in_the_next_round():
    [host] = free_hosts(1)
    store = open_store(host)
    assert launch(one_is_alone_at_first, 2, args=(host,), timeout=PATIENT) == [3.0, 3.0]
    del store


SCRIPT = """
import time
from course_lib.elastic.demo import train_digits
from course_lib.elastic.fleet import Fleet
from course_lib.elastic.limits import Limits
fleet = Fleet(train_digits, 2, args=(10**6, 0.02), limits=Limits(2, 2))
fleet.wait_for_step(3, 250)
print(fleet.folder.name, *fleet.hosts, *{e["pid"] for e in fleet.journal.events}, flush=True)
fleet.pause_agent(0)
print("paused", flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="without a fork server nobody removes the folder")
def test_nothing_outlives_a_launcher_that_is_killed():
    """Agent 1 sees that its launcher is gone, and agent 0, which is stopped, does not."""
    script = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    family = []
    try:
        folder, *rest = script.stdout.readline().split()
        journal = Journal.read(folder)
        assert script.stdout.readline() == "paused\n"
        family = psutil.Process(script.pid).children(recursive=True)
        script.kill()
        script.wait()
        check_nothing_is_left(journal, [word for word in rest if ":" in word], folder)
        assert psutil.wait_procs(family, timeout=PATIENT)[1] == []
    finally:
        script.kill()
        script.wait()
        script.stdout.close()
        for process in family:
            if process.is_running():
                process.kill()


def test_a_store_is_open_to_its_own_address_alone():
    """It once listened on all networks that the machine is in, and a store asks for no password."""
    [host] = free_hosts(1)
    store = open_store(host)
    connections = psutil.Process().net_connections("tcp")
    listens = {c.laddr.ip for c in connections if c.status == "LISTEN" and c.laddr.port == split(host)[1]}
    assert listens == {"127.0.0.1"}
    assert ReachedStore(host, patience=20.0).compare_set("a", "", "1") == "1"
    with pytest.raises(ValueError, match="choose a free port at an address of this machine"):
        open_store("192.0.2.1:20000")  # an address for examples: nobody has it
    del store


def keep_open(host, sign):
    store = open_store(host)
    sign.touch()
    time.sleep(1000)
    del store


def test_a_store_that_was_stopped_does_not_block(tmp_path):
    [host] = free_hosts(1)
    world = World(1, "gloo", quiet=True)
    try:
        world.begin(keep_open, (host, tmp_path / "open"))
        wait_for((tmp_path / "open").exists, "no store is opened")
        with pytest.raises(ValueError, match=f"no store can be opened at {host}"):
            open_store(host)
        store = ReachedStore(host, patience=20.0)
        assert store.compare_set("a", "", "1") == "1"
        assert store.add("n", 2) == 2
        process = psutil.Process(world.processes[0].pid)
        process.suspend()
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED, "it does not stop")
        store.patience = 0.2
        for _ in range(2):
            with pytest.raises(ConnectionError, match="does not answer"):
                store.add("n", 1)
        with pytest.raises(ConnectionError):
            ReachedStore(host, patience=0.2)
    finally:
        world.stop()
    with pytest.raises(ConnectionError):
        ReachedStore(host, patience=20.0)
    with pytest.raises(ValueError, match="an address and a port"):
        split("here")
