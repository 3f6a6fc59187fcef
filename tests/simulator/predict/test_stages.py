"""The bridge from a plan to any schedule: durations and bytes that agree with the closed forms."""

from dataclasses import replace

import pytest

from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.pipeline.schedules import SCHEDULES
from simulator.predict.layer_time import layer_seconds, logits_seconds
from simulator.predict.memory import kept_layer_bytes, plan_memory, stage_bytes, weight_bytes
from simulator.predict.memory_over_time import peak_saved, replay
from simulator.predict.plan_traffic import plan_traffic
from simulator.predict.stages import plan_schedule, run_schedule, stage_durations
from simulator.predict.step import check_fits, stage_seconds, step_cost
from simulator.predict.traffic import schedule_traffic

A100 = GPUS["a100-80gb"]
# arXiv:2401.10241, table 3: 1.5B parameters on 8 stages, the ends one layer shorter.
SHAPE = ModelShape(layers=22, hidden=2304, heads=24, vocab=51200, sequence=1024)
COMPUTED = ("attention", "mlp", "norms", "recomputation", "embedding", "logits")
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
    layer = layer_seconds(MODELS["gpt-1t"], Plan(tp=8, pp=64), A100)
    assert times.forward[5] == pytest.approx(2 * layer.forward_seconds)
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
    assert plan.schedule == name
    replayed = replay(run_schedule(shape, plan, A100), *stage_bytes(shape, plan))
    for history, formula in zip(replayed, plan_memory(shape, plan), strict=True):
        assert history.peak.bytes == pytest.approx(formula.activations, rel=1e-3)


def test_zero_bubble_buys_time_with_memory():
    plans = [replace(PLAN, schedule=name) for name in ("1f1b", "zb-h1", "zb-h2")]
    one, h1, h2 = (step_cost(SHAPE, plan, A100) for plan in plans)
    assert one.seconds > h1.seconds > h2.seconds
    peaks = [max(memory.activations for memory in plan_memory(SHAPE, plan)) for plan in plans]
    assert peaks[2] > 1.8 * peaks[0]
    with pytest.raises(ValueError, match="has 80 GB"):
        check_fits(SHAPE, replace(PLAN, schedule="gpipe"), A100)  # it keeps all 24 microbatches


def test_the_bubble_of_1f1b_is_that_of_the_engine():
    stages = [stage_seconds(SHAPE, PLAN, A100, rank) for rank in range(PLAN.pp)]
    busy = max(sum(s for name, s in stage.items() if name in COMPUTED) for stage in stages)
    found = run_schedule(SHAPE, PLAN, A100).makespan - PLAN.microbatches * busy
    assert step_cost(SHAPE, PLAN, A100).parts["bubble"] == pytest.approx(found, rel=0.1)


def test_the_step_is_the_makespan_and_what_is_outside():
    plan = replace(PLAN, schedule="zb-h1")
    cost = step_cost(SHAPE, plan, A100)
    makespan = run_schedule(SHAPE, plan, A100).makespan
    outside = sum(cost.parts.get(name, 0) for name in ("pipeline", "gradient_accumulation", "optimizer"))
    assert cost.seconds == pytest.approx(makespan + outside)


@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_a_v_places_layers_embedding_and_head(name):
    """Rank r holds chunks r and 2p-1-r: 1, 1, 1, 9 layers put 10 on rank 0 and 2 on rank 1."""
    shape = ModelShape(12, 512, 8, 1000, 256)
    plan = Plan(pp=2, schedule=name, microbatches=4, stage_layers=(1, 1, 1, 9))
    assert plan.layers_of(shape) == [[1, 9], [1, 1]]
    ends = shape.embedding_parameters() + shape.head_parameters()  # on one rank: a tied matrix is there once
    assert plan.parameters_of(shape, 0) == (10 * shape.layer_parameters() + ends, 0)
    assert plan.parameters_of(shape, 1) == (2 * shape.layer_parameters(), 0)
    first, second = plan_memory(shape, plan)
    assert first.parameters > second.parameters
    assert first.activations > second.activations
    ends, middle = (stage_seconds(shape, plan, A100, rank) for rank in (0, 1))
    assert ends["mlp"] == pytest.approx(5 * middle["mlp"])
    assert ends["embedding"] > 0
    assert ends["logits"] > 0
    assert middle["embedding"] == middle["logits"] == 0
    assert middle["pipeline"] == ends["pipeline"] / 2  # nothing travels where the V turns
    sent = [plan_traffic(shape, plan, rank).of("send").calls for rank in (0, 1)]
    assert sent == [schedule_traffic(plan_schedule(plan), 1, rank).calls for rank in (0, 1)] == [8, 8]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("microbatches", [3, 8, 17, 40])
def test_peaks_follow_from_the_order_of_actions(name, microbatches):
    plan = Plan(pp=4, schedule=name, microbatches=microbatches)
    saved, kept = stage_bytes(MODELS["gpt2"], plan)
    peaks = [history.peak.bytes for history in replay(run_schedule(MODELS["gpt2"], plan, A100), saved, kept)]
    assert peak_saved(plan_schedule(plan), saved, kept) == pytest.approx(peaks)
    # A plan's memory looks at the first microbatches only, or at a closed form, which counts the logits once.
    formula = [rank.activations for rank in plan_memory(MODELS["gpt2"], plan)]
    assert formula[:-1] == pytest.approx(peaks[:-1], rel=1e-3)
    assert formula[-1] == pytest.approx(peaks[-1], rel=0.3)


def test_uneven_rounds_of_microbatches_are_counted_as_the_schedule_runs_them():
    for p, m, layers in [
        (4, 10, (1,) * 8),
        (3, 7, (1, 2, 1, 3, 1, 4)),
        (4, 3, (2,) * 8),
        (2, 5, (4, 1, 1, 2)),
    ]:
        plan = Plan(pp=p, chunks=2, microbatches=m, stage_layers=layers)
        shape = replace(SHAPE, layers=sum(layers), vocab=8, dropout=False)
        peaks = peak_saved(plan_schedule(plan), *stage_bytes(shape, plan))
        assert [rank.activations for rank in plan_memory(shape, plan)] == pytest.approx(peaks, rel=2e-2)
