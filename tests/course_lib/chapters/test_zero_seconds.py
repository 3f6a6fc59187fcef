"""Llama 13B on two clusters: what chapter 06 says of its plans."""

import pytest

from course_lib.chapters.zero_seconds import (
    CARDS,
    CLUSTERS,
    HALF,
    LLAMA,
    PASSES,
    RANKS,
    SEQUENCES,
    STAGES,
    fitting,
    halves,
    plot_all_plans,
    price,
    quickest,
    sequence_bytes,
    speed,
    try_plans,
)
from simulator.inputs.plan import Plan
from simulator.predict.memory import model_states


def test_the_two_clusters_want_opposite_plans():
    assert (quickest("A100"), quickest("H100")) == ((1, 4), (3, 1))
    told = plot_all_plans().alt
    assert told.count("the quickest") == 2
    assert told.count("too large") == 6


def test_on_a100s_stage_3_waits_most_of_the_step():
    one, three = price("A100", 1, 4), price("A100", 3, 4)
    assert three.seconds > 3.9 * one.seconds
    assert three.waits > three.seconds / 2
    assert three.bytes < one.bytes


@pytest.mark.parametrize("gpu", CLUSTERS)
def test_seconds_are_halves_times_bytes_over_speed(gpu):
    network = CLUSTERS[gpu].network
    assert speed(gpu) == pytest.approx(8 * network.rate)
    card = network.bandwidth * 8 / CARDS[gpu]
    assert card == pytest.approx({"A100": 100e9 / 8, "H100": 400e9 / 8}[gpu])
    for plan in fitting(gpu):
        assert price(gpu, *plan).waits < halves(*plan) * HALF / speed(gpu)


def test_on_a100s_messages_hide_hardly():
    for plan in fitting("A100"):
        assert price("A100", *plan).waits > 0.8 * halves(*plan) * HALF / speed("A100")


@pytest.mark.parametrize("gpu", CLUSTERS)
def test_the_rule_of_thumb_takes_the_quickest(gpu):
    few = min(fitting(gpu), key=lambda plan: plan[1])
    found = price(gpu, *few)
    hides = halves(*few) * HALF / speed(gpu) < found.seconds - found.waits
    assert quickest(gpu) == (few if hides else min(fitting(gpu), key=lambda plan: halves(*plan)))


@pytest.mark.parametrize("gpu", CLUSTERS)
def test_states_and_activations_say_what_fits(gpu):
    for stage in STAGES:
        states = model_states(LLAMA.parameters, Plan(RANKS, zero=stage)).total
        for passes in PASSES:
            held = states + SEQUENCES // passes * sequence_bytes()
            assert (held < 80e9) == ((stage, passes) in fitting(gpu))


def test_on_h100s_plans_of_few_passes_compute_alike_and_the_gather_after_the_update_waits():
    few = [price("H100", *plan) for plan in fitting("H100") if plan[1] < 4]
    computing = [found.seconds - found.waits for found in few]
    assert max(computing) < 1.01 * min(computing)
    assert min(few, key=lambda found: found.waits) == price("H100", *quickest("H100"))
    gather = HALF / speed("H100")
    assert all(price("H100", *plan).waits > gather for plan in fitting("H100") if plan[0] < 3)
    assert price("H100", 3, 1).waits < gather / 2


def test_a_choice_is_judged():
    said = repr(try_plans({"A100": (1, 4), "H100": (1, 1)}))
    assert "the quickest" in said
    assert "does not fit" in said


@pytest.mark.parametrize("wrong", [("V100", 1, 1), ("A100", 0, 1), ("A100", 1, 3)])
def test_what_the_chapter_does_not_know_is_refused(wrong):
    with pytest.raises(ValueError, match="must be one of"):
        price(*wrong)
