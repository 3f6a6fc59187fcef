"""Blocks timed for some shares: the names and shares that a planner takes, and numbers that it can use."""

import torch

from course_lib.observe.share_seconds import block_work, processor_seconds, share_seconds
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
            block_work(SHAPE, block, share, batch=2)()
