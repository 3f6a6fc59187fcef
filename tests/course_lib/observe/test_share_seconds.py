"""Blocks timed for some shares: the names and shares that a planner takes, and numbers that it can use."""

import time

import torch

from course_lib.observe.handling_seconds import Handling
from course_lib.observe.share_seconds import block_work, processor_seconds, share_seconds
from course_lib.runtime import launch, trace
from simulator.inputs.galaxy import WAYS
from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.shape import ModelShape
from simulator.planner.layer_split import plan_layer
from simulator.predict.shares import BLOCKS, measured_seconds

SHAPE = ModelShape(2, 32, 4, 50, 16, dropout=False)


def test_a_planner_takes_what_was_timed():
    points = share_seconds(SHAPE, {"heads": [1, 4], "columns": [32, 128], "positions": [4, 16]}, calls=1)
    assert {block: set(shares) for block, shares in points.items()} == {
        block: {"heads": {1, 4}, "columns": {32, 128}, "positions": {4, 16}}[counted]
        for block, counted in BLOCKS.items()
    }
    link = Link(1e-6, 1e9)
    device = Hardware("here", 1e12, float("inf"), 1e10, link, link)
    split = plan_layer(SHAPE, [device] * 2, "galaxy", seconds=measured_seconds(points, [1, 3]))
    assert sum(split.heads) == SHAPE.heads


def test_only_what_is_asked_for_is_timed():
    assert set(share_seconds(SHAPE, {"columns": [32]}, calls=1)) == {"mlp"}


def test_the_first_call_does_not_count():
    calls = []
    assert processor_seconds(lambda: calls.append(1), 3) >= 0
    assert len(calls) == 4


def test_every_block_runs_forward_and_backward_for_any_share():
    torch.manual_seed(0)
    for block, counted in BLOCKS.items():
        for share in {"heads": (1, 4), "columns": (1, 128), "positions": (1, 16)}[counted]:
            forward, backward = block_work(SHAPE, block, share, batch=2).seconds(1, 0.0)
            assert min(forward, backward) > 0


def test_the_inside_of_a_message_does_not_count():
    def work():
        with trace.span("communication", "all-gather"):
            start = time.thread_time()
            while time.thread_time() - start < 0.05:
                pass

    assert processor_seconds(work, 1) < 0.05


def handled(mesh):
    shares = {"heads": [3, 1], "columns": [96, 32], "sequence": [3, 1]}
    return {way: (Handling(SHAPE, mesh, way, shares)(1), Handling(SHAPE, mesh, way, {})(1)) for way in WAYS}


def test_messages_of_every_way_are_handled_by_each_rank():
    kinds = {
        "tp": {"attention", "mlp", "connection"},
        "sp": {"attention of positions", "mlp of positions", "connection"},
        "galaxy": {"attention", "mlp", "connection"},
        "galaxy2": {"attention", "mlp of positions", "connection"},
    }
    for of_ways in launch(handled, mesh={"tp": 2}):
        for way, of_splits in of_ways.items():
            for seconds in of_splits:
                assert set(seconds) == kinds[way]
                assert all(forward > 0 and backward > 0 for forward, backward in seconds.values())
                points = {kind: {1: (1.0, 1.0)} for kind in seconds}
                timed = measured_seconds(points, [1, 3], seconds)
                for kind, both in seconds.items():
                    assert timed(kind, 0, 0) == timed(kind, 1, 0) == tuple(3 * each for each in both)
