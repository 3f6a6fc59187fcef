"""The bridge from a plan to any schedule: durations and bytes that agree with the closed forms."""

import pytest

from simulator.inputs.hardware import GPUS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import MODELS, ModelShape
from simulator.predict.layer_time import layer_seconds, logits_seconds
from simulator.predict.memory import kept_layer_bytes, plan_memory, weight_bytes
from simulator.predict.stages import run_schedule, schedule_memory, stage_bytes, stage_durations
from simulator.predict.step import check_fits, stage_seconds, step_cost

A100 = GPUS["a100-80gb"]
# arXiv:2401.10241, table 3: 1.5B parameters on 8 stages, the ends one layer shorter.
SHAPE = ModelShape(layers=22, hidden=2304, heads=24, vocab=51200, sequence=1024)
PLAN = Plan(pp=8, micro_batch=6, microbatches=24, stage_layers=(2, 3, 3, 3, 3, 3, 3, 2))


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_durations_are_the_stages_of_the_step(recompute):
    plan = Plan(pp=4, microbatches=4, recompute=recompute)
    times = stage_durations(MODELS["gpt2"], plan, A100)
    for rank in range(4):
        parts = stage_seconds(MODELS["gpt2"], plan, A100, rank)
        computed = sum(parts.values()) - parts["pipeline"] - parts["gradient_accumulation"]
        split = times.forward[rank] + times.backward_input[rank] + times.backward_weight[rank]
        assert split == pytest.approx(computed)


def test_weights_take_about_a_third_of_a_large_layer():
    times = stage_durations(MODELS["gpt-1t"], Plan(tp=8, pp=64), A100)
    assert times.backward_weight[5] == pytest.approx(times.forward[5], rel=0.2)
    forward, _ = layer_seconds(MODELS["gpt-1t"], Plan(tp=8, pp=64), A100)
    assert times.forward[5] == pytest.approx(2 * sum(forward.values()))
    last = logits_seconds(MODELS["gpt-1t"], Plan(tp=8, pp=64), A100)
    assert times.forward[-1] - times.forward[5] == pytest.approx(last / 3)


def test_bytes_that_wait_for_the_weights_backward():
    """arXiv:2401.10241, table 1: M_B = sb(34h + 5as), M_W = 32sbh."""
    b, s, h, a = PLAN.micro_batch, SHAPE.sequence, SHAPE.hidden, SHAPE.heads
    assert kept_layer_bytes(SHAPE, PLAN) == s * b * (34 * h + 5 * a * s)
    assert weight_bytes(SHAPE, PLAN) == 32 * s * b * h
    saved, kept = stage_bytes(SHAPE, PLAN)
    assert saved[1] == 3 * kept_layer_bytes(SHAPE, PLAN)
    assert kept[1] == 3 * weight_bytes(SHAPE, PLAN)
    assert weight_bytes(SHAPE, Plan(recompute="full")) == kept_layer_bytes(SHAPE, Plan(recompute="full"))


@pytest.mark.parametrize(("chunks", "name"), [(1, "1f1b"), (2, "interleaved-1f1b")])
def test_replay_finds_what_the_closed_form_says(chunks, name):
    shape = MODELS["gpt3-175b"]
    plan = Plan(tp=8, pp=8, chunks=chunks, sequence_parallel=True)
    for replayed, formula in zip(schedule_memory(shape, plan, name), plan_memory(shape, plan), strict=True):
        assert replayed.activations == pytest.approx(formula.activations, rel=1e-3)
        assert replayed.parameters == formula.parameters


def test_zero_bubble_buys_time_with_memory():
    one, h1, h2 = (step_cost(SHAPE, PLAN, A100, name) for name in ("1f1b", "zb-h1", "zb-h2"))
    assert one.seconds > h1.seconds > h2.seconds
    assert one.parts["bubble"] == pytest.approx(step_cost(SHAPE, PLAN, A100).parts["bubble"], rel=0.1)
    peaks = [
        max(m.activations for m in schedule_memory(SHAPE, PLAN, name)) for name in ("1f1b", "zb-h1", "zb-h2")
    ]
    assert peaks[2] > 1.8 * peaks[0]
    with pytest.raises(ValueError, match="has 80 GB"):
        check_fits(SHAPE, PLAN, A100, "gpipe")  # it keeps all 24 microbatches


def test_the_step_is_the_makespan_and_what_is_outside():
    cost = step_cost(SHAPE, PLAN, A100, "zb-h1")
    makespan = run_schedule(SHAPE, PLAN, A100, "zb-h1").makespan
    outside = sum(cost.parts.get(name, 0) for name in ("pipeline", "gradient_accumulation", "optimizer"))
    assert cost.seconds == pytest.approx(makespan + outside)
