"""Llama 13B on two clusters: what chapter 06 says of its plans."""

from dataclasses import replace

import pytest

from course_lib.chapters.zero_seconds import (
    FILES,
    STAGES,
    Cluster,
    divisors,
    fewest_passes,
    first_speed,
    held,
    plot_held,
    plot_plans,
    plot_timeline,
    quickest,
    step,
)
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.predict.step import step_cost
from simulator.published.fsdp import all_cards

OWNED, RENTED = Cluster("A100", 10), Cluster("H100", 320)


def best(cluster):
    found = quickest(cluster)
    return found and (found.stage, found.passes)


def test_a_slow_network_wants_stage_1_and_a_fast_one_stage_3():
    assert best(OWNED) == (1, 4)
    assert best(RENTED) == (3, 1)
    assert [(one.stage, one.passes) for one in fewest_passes(OWNED)] == [(1, 4), (2, 2), (3, 1)]
    told = plot_plans("A100", 10).alt
    assert (
        "stage 1, 4 passes: 7.82 s, the shortest; stage 2, 2 passes: 9.33 s; stage 3, 1 pass: 9.07 s" in told
    )
    # The rule of thumb: fewest passes, unless their messages take longer than computing; then the fewest halves.
    for cluster in (OWNED, RENTED):
        steps = fewest_passes(cluster)
        few = min(steps, key=lambda one: one.passes)
        hides = few.halves * few.half < few.computing
        assert (few if hides else min(steps, key=lambda one: one.halves)) == quickest(cluster)


def test_the_speed_from_which_stage_3_wins():
    speed = first_speed("A100", 3)
    assert speed == 20
    assert best(replace(OWNED, speed=speed - 1)) == (1, 4)
    assert {best(replace(OWNED, speed=one)) for one in (speed, 2 * speed, 8 * speed)} == {(3, 1)}
    with pytest.raises(ValueError, match="never makes"):
        first_speed("A100", 2)


@pytest.mark.parametrize(
    ("gpu", "hardware"), [("A100", all_cards("a100-80gb", 100e9)), ("H100", GPUS["h100"])]
)
@pytest.mark.parametrize(("stage", "passes"), [(1, 4), (2, 2), (3, 1), (3, 4)])
def test_the_picture_s_rule_says_what_the_simulator_says(gpu, hardware, stage, passes):
    found = step(OWNED if gpu == "A100" else RENTED, stage, passes)
    size, overlap = 4 // passes, ("gradients", "parameters")
    plan = Plan(64, zero=stage, microbatches=passes, micro_batch=size, attention="flash", overlap=overlap)
    # Left out are latencies, and that embedding and head are gathered beside nothing: most in twelve short halves.
    near = 0.03 if found.halves == 12 else 0.01
    assert found.seconds == pytest.approx(step_cost(MODELS["llama-13b"], plan, hardware).seconds, rel=near)


def test_a_step_is_computing_and_sending_without_what_hides():
    one, three = step(OWNED, 1, 4), step(OWNED, 3, 4)
    assert (one.halves, step(OWNED, 2, 4).halves, three.halves) == (2, 5, 12)
    # On A100s messages are so long that half of all computing beside them hides some.
    assert one.hidden == pytest.approx((one.forward + one.backward) / 2)
    assert three.hidden == pytest.approx((three.computing - three.update) / 2)
    assert one.half == pytest.approx(63 / 64 * 26 / 10, rel=0.01)
    assert three.seconds / 4 > one.seconds


def test_the_timeline_ends_where_the_step_ends():
    told = plot_timeline("A100", 10).alt
    one, three = step(OWNED, 1, 4), step(OWNED, 3, 4)
    assert f"stage 1, all passes {one.seconds:.2f} s" in told
    assert f"stage 3, pass 1 {(three.seconds - three.update) / 4:.2f} s" in told
    assert "63/64 × 26 GB ÷ 10 GB/s = 2.56 s" in told


def test_states_and_activations_say_what_fits():
    for stage in STAGES:
        for passes in divisors(4):
            assert (held(stage, 4 // passes).total < 80e9) == step(OWNED, stage, passes).fits
    told = plot_held([(0, 4), (2, 1)]).alt
    assert "DDP, 4 passes 222" in told
    assert "stage 2, 1 pass 84.2 GB" in told


def test_a_cluster_without_room_is_drawn():
    told = plot_plans("H100", 320, gpus=16, sequences=1, model="llama-3-70b").alt
    assert told.count("no room") == 3
    assert "shortest" not in told


@pytest.mark.parametrize("wrong", [{"gpu": "V1"}, {"model": "llama"}, {"speed": 0}, {"gpus": 1}])
def test_what_is_not_known_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        replace(OWNED, **wrong)
    assert set(FILES.values()) <= set(GPUS)


@pytest.mark.parametrize("plan", [(0, 1), (1, 3)])
def test_other_stages_and_passes_are_refused(plan):
    with pytest.raises(ValueError, match="must be one of"):
        step(OWNED, *plan)
