"""Layers of stages on unequal devices: never slower than the even split or than any other."""

import random

import pytest

from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.planner import stage_split
from simulator.planner.stage_split import plan_stages, price_stages

CPU, BERT = GPUS["laptop-cpu"], MODELS["bert-base"]


def cuts(layers, stages):
    if stages == 1:
        return [[layers]]
    return [[n, *rest] for n in range(1, layers - stages + 2) for rest in cuts(layers - n, stages - 1)]


def test_no_split_is_faster(monkeypatch):
    tight = 0
    for seed in range(16):
        rng = random.Random(seed)
        stages = rng.choice([2, 3, 4])
        layers = rng.randint(stages, 7)
        shape = ModelShape(layers, rng.choice([64, 256]), 4, 1000, rng.choice([32, 128]))
        plan = Plan(
            pp=stages,
            microbatches=rng.choice([stages, 8]),
            schedule=rng.choice(["gpipe", "1f1b", "zb-h1"]),
            precision="fp32",
        )
        devices = [CPU.slowed(rng.uniform(1, 5)) for _ in range(stages)]
        if seed % 2 and layers > stages:
            held = plan_stages(shape, devices, plan).memory
            devices[held.index(max(held))] = devices[held.index(max(held))].slowed(1, max(held) - 1)
        priced = [price_stages(shape, devices, plan, split) for split in cuts(layers, stages)]
        fit = [s for s in priced if all(m <= d.memory for m, d in zip(s.memory, devices, strict=True))]
        if not fit:
            continue
        tight += len(fit) < len(priced)
        best = min(split.seconds for split in fit)
        assert plan_stages(shape, devices, plan).seconds == pytest.approx(best, rel=1e-9), f"case {seed}"
        with monkeypatch.context() as patch:  # as for many splits: the best by formula, then single moves
            patch.setattr(stage_split, "ALL", 0)
            assert plan_stages(shape, devices, plan).seconds <= 1.02 * best, f"case {seed}"
    assert tight


def test_of_many_stages_few_splits_are_simulated(monkeypatch):
    """1,560 single moves lead away from each split of 40 stages; the chains of earlier steps rule nearly all out."""
    rng, runs = random.Random(0), []
    devices = [CPU.slowed(rng.choice([1, 1.3, 1.7, 2, 2.5])) for _ in range(40)]
    run = stage_split.simulate
    monkeypatch.setattr(stage_split, "simulate", lambda *args: runs.append(1) or run(*args))
    plan = Plan(pp=40, microbatches=80, precision="fp32")
    shape = ModelShape(90, 256, 4, 1000, 32)
    planned = plan_stages(shape, devices, plan)
    assert len(runs) < 200
    assert planned.seconds < 0.85 * price_stages(shape, devices, plan).seconds


def test_a_slow_stage_gets_fewer_layers():
    plan = Plan(pp=2, microbatches=8, precision="fp32")
    even, planned = (
        price_stages(BERT, [CPU, CPU.slowed(3)], plan),
        plan_stages(BERT, [CPU, CPU.slowed(3)], plan),
    )
    assert even.layers == [6, 6]
    assert planned.layers[0] > 2 * planned.layers[1]
    assert planned.seconds < 0.6 * even.seconds
    assert planned.seconds >= planned.execution.makespan
    assert price_stages(BERT, [CPU, CPU.slowed(3)], plan, planned.layers).seconds == planned.seconds


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: plan_stages(BERT, [CPU.slowed(1, 1e9), CPU.slowed(3, 1e9)], Plan(pp=2, precision="fp32")),
            r"room for \d+ layers \(\d+, \d+\), and the model has 12: with one more layer, rank \d .* it lacks",
        ),
        (
            lambda: plan_stages(BERT, [CPU.slowed(1, 2e8), CPU], Plan(pp=2, precision="fp32")),
            r"even with one layer, rank 0 \(laptop-cpu\) needs .* and has 200 MB: it lacks",
        ),
        (lambda: plan_stages(BERT, [CPU], Plan(pp=2)), "devices must be 2 Hardware, one a stage"),
        (lambda: plan_stages(BERT, [CPU, CPU], Plan(pp=2, schedule="zb-v")), "chunks of the plan must be 1"),
        (lambda: price_stages(BERT, [CPU, CPU], Plan(pp=2), [9, 4]), "add up to 12"),
        (lambda: plan_stages(BERT, [CPU], Plan()), "pp must be a whole number of at least 2"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
