"""Traces of our collectives: the log alone leads from what ranks held before to what they hold after."""

import re
from functools import partial

import pytest
import torch
import torch.distributed as dist

from course_lib.observe.ledgers.messages import labels, read_label, record_messages, trace_collective
from course_lib.observe.show.collectives import plot_rounds
from course_lib.runtime import collectives, launch
from simulator.predict.collective_time import all_reduce_rounds
from simulator.predict.message_rounds import Event


@pytest.mark.parametrize("algorithm", list(collectives.ALL_REDUCE))
@pytest.mark.parametrize("ranks", [3, 4])
def test_the_log_of_an_all_reduce_leads_from_before_to_after(algorithm, ranks):
    trace = trace_collective(partial(collectives.all_reduce, algorithm=algorithm), ranks)
    assert trace.rounds == all_reduce_rounds(algorithm, ranks)
    held = [list(row) for row in trace.before]
    for message in trace.messages:
        for value in message.values:
            held[message.receiver][read_label(value, ranks)[0]] |= value
    assert [tuple(row) for row in held] == trace.after
    assert [read_label(v, ranks) for v in trace.after[0]] == [
        (c, frozenset(range(ranks))) for c in range(ranks)
    ]


def test_starts():
    shard = trace_collective(collectives.all_gather, 3, start="shard")
    assert shard.before == [(1 << 0,), (1 << 4,), (1 << 8,)]
    assert shard.after == [(1 << 0, 1 << 4, 1 << 8)] * 3
    scattered = trace_collective(collectives.reduce_scatter, 3)
    summed = trace_collective(collectives.all_gather, 3, start="sum")
    assert summed.before == scattered.after
    assert summed.after == [tuple(value for (value,) in scattered.after)] * 3
    root = trace_collective(partial(collectives.scatter, src=2), 3, start="root", root=2)
    assert root.before == [(0, 0, 0), (0, 0, 0), (1 << 2, 1 << 5, 1 << 8)]
    assert root.after == [(1 << 2,), (1 << 5,), (1 << 8,)]


def sends_in_a_subgroup(mesh):
    group = mesh.get_group("tp")
    with record_messages() as events:
        if dist.get_rank(group) == 0:
            collectives.send(torch.ones(3), 1, group)
        else:
            collectives.receive(torch.ones(3), 0, group)
    return events


def test_peers_are_named_in_the_default_group_and_floats_are_not_kept():
    logs = launch(sends_in_a_subgroup, mesh={"dp": 2, "tp": 2})
    assert [log[0] for log in logs] == [
        Event("send", 1, 12), Event("receive", 0, 12), Event("send", 3, 12), Event("receive", 2, 12)
    ]  # fmt: skip


def test_a_label_says_chunk_and_parts():
    total = sum(labels(rank, 5) for rank in (0, 3))
    assert [read_label(int(v), 5) for v in total] == [(c, frozenset({0, 3})) for c in range(5)]
    with pytest.raises(ValueError, match=r"mixes the chunks \[0, 1\]"):
        read_label(0b10001, 4)
    with pytest.raises(ValueError, match="1 to 7 ranks, not 8"):
        labels(0, 8)
    with pytest.raises(ValueError, match="not 'half'"):
        trace_collective(collectives.broadcast, 2, start="half")


def test_pictures_tell_the_same_in_words():
    ring = trace_collective(collectives.all_reduce, 3)
    picture = plot_rounds(ring, "Ring all-reduce")
    assert picture.alt == (
        "Ring all-reduce on 3 ranks, 4 rounds, 12 messages. "
        "Finished chunks on ranks 0 to 2 after each round: 0 0 0, 1 1 1, 2 2 2, 3 3 3."
    )
    assert (
        picture.svg.count("marker-end") == 12 + 4
    )  # a message around the end of the ring is drawn in two pieces
    assert re.findall("round [0-9]", picture.svg) == [f"round {turn}" for turn in range(1, 5)]


def test_whole_tensors_are_drawn_as_arcs_above_the_ranks():
    picture = plot_rounds(trace_collective(collectives.broadcast, 4, start="root"), "Broadcast")
    assert picture.svg.count(" C") == 3
    assert picture.alt.endswith("4 4 0 0, 4 4 4 4.")


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_rounds(trace_collective(collectives.broadcast, 1))
