"""Llama 13B on two clusters: what chapter 06 says of its plans."""

from dataclasses import replace

import pytest

from course_lib.chapters.zero_seconds import (
    FILES,
    STAGES,
    Cluster,
    divisors,
    fewest_passes,
    held,
    plot_held,
    plot_speeds,
    quickest,
    saved,
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


@pytest.mark.parametrize("speed", [5, 10, 19, 20, 25, 27, 50, 200])
def test_the_rule_of_thumb_holds_at_every_speed(speed):
    one, _, three = fewest_passes(replace(OWNED, speed=speed))
    assert (one.half < saved(one, three)) == (three.seconds < one.seconds)


def test_the_speed_from_which_stage_3_wins():
    one, _, three = fewest_passes(OWNED)
    marked = 10 * one.half / saved(one, three)
    assert marked == pytest.approx(19.57, abs=0.01)
    assert best(replace(OWNED, speed=0.99 * marked)) == (1, 4)
    assert {best(replace(OWNED, speed=more * marked)) for more in (1.01, 2, 8)} == {(3, 1)}
    assert "marked at 19.6: stage 1, 4 passes" in plot_speeds("A100", marked).alt


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


def test_states_and_activations_say_what_fits():
    for stage in STAGES:
        for passes in divisors(4):
            assert (held(stage, 4 // passes).total < 80e9) == step(OWNED, stage, passes).fits
    told = plot_held([(0, 4), (2, 1)]).alt
    assert "DDP, 4 passes 222" in told
    assert "stage 2, 1 pass 84.2 GB" in told


@pytest.mark.parametrize("wrong", [{"gpu": "V1"}, {"model": "llama"}, {"speed": 0}, {"gpus": 1}])
def test_what_is_not_known_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        replace(OWNED, **wrong)
    assert set(FILES.values()) <= set(GPUS)


@pytest.mark.parametrize("plan", [(0, 1), (1, 3)])
def test_other_stages_and_passes_are_refused(plan):
    with pytest.raises(ValueError, match="must be one of"):
        step(OWNED, *plan)
