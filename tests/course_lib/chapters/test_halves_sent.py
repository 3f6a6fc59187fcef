"""ZeRO's stages as settings of ``fully_shard``: halves that are sent, and what differs from one device."""

import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import AdamW

from course_lib.chapters.halves_sent import halves_sent
from course_lib.one_device.loop import cross_entropy


def said(
    *,
    forward=False,
    whole=(0, 1, 2),  # after the backward of these passes
    waits=(0, 1, 2),
    passes=4,
    cut=True,
    early=False,
    steps=(3,),
    lr=1e-3,
):
    def train(model, x, y):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        parameters = list(model.parameters())
        for part in (*model.blocks, model) if cut else ():
            fully_shard(part, mp_policy=policy, reshard_after_forward=forward)
        optimizer = AdamW(parameters if early else model.parameters(), lr=lr)
        for i in range(passes):
            if cut:
                model.set_reshard_after_backward(i not in whole)
                model.set_requires_gradient_sync(i not in waits)
            (cross_entropy(model(x[i]), y[i]) / 4).backward()
            if i in steps[:-1]:
                optimizer.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if steps:
            optimizer.step()

    tokens = torch.randint(0, 250, (8, 4, 1, 8), generator=torch.Generator().manual_seed(0))
    return halves_sent(train, list(tokens[0]), list(tokens[1]))


@pytest.mark.parametrize(
    ("halves", "settings"),
    [
        (2, {}),
        (5, {"waits": ()}),
        (8, {"waits": (), "whole": ()}),
        (12, {"waits": (), "whole": (), "forward": True}),
    ],
)
def test_fully_shard_is_all_three_stages(halves, settings):
    assert said(**settings) == f"{halves} halves, and trained as on one device"


@pytest.mark.parametrize(
    ("wrong", "settings"),
    [
        ("2 halves, but the next step computes with old weights", {"whole": (0, 1, 2, 3)}),
        ("1 half, but the optimizer finds no averaged gradient, so it", {"waits": (0, 1, 2, 3)}),
        ("in its update the passes count 1, 0, 0, 0 times", {"passes": 1, "waits": ()}),
        ("in its update the passes count 1, 1, 1, 0 times", {"waits": (3,)}),
        ("the optimizer does not have the shards", {"early": True}),
        ("`fully_shard` has not cut the model", {"cut": False}),
        ("the optimizer makes 2 steps, not one", {"steps": (0, 3)}),
        ("the optimizer makes 0 steps, not one", {"steps": ()}),
        ("the trained weights are not those of one device", {"lr": 1e-2}),
    ],
)
def test_what_differs_from_one_device_is_named(wrong, settings):
    assert wrong in said(**settings)
