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
    in_seconds,
    plot_plans,
    price,
    quickest,
    sequence_bytes,
    speed,
)
from simulator.inputs.plan import Plan
from simulator.predict.memory import model_states


def test_the_two_clusters_want_opposite_plans():
    assert quickest("A100") == (1, 4)
    assert quickest("H100") == (3, 1)
    assert [plot_plans(gpu).alt.count("the shortest") for gpu in CLUSTERS] == [1, 1]
    assert price("H100", 2, 2).seconds - price("H100", 3, 1).seconds < 0.01


def test_a_step_is_computing_and_sending_without_what_hides():
    told = plot_plans("A100").alt
    assert "stage 1, passes 4: 3.06 + 5.13 − 0.36 = 7.83 s, the shortest" in told
    assert "stage 3, passes 1: 2.77 + 7.69 − 1.38 = 9.08 s" in told
    # One pass of four hides messages at stage 1, the whole pass at stage 3: half of what it computes.
    hides = CLUSTERS["A100"].data_overlap * 2.77
    assert hides / 4 == pytest.approx(0.36, rel=0.05)
    assert hides == pytest.approx(1.38, rel=0.05)
    assert "50%" in repr(in_seconds("A100"))
    one = plot_plans("A100", [(3, 4)]).alt
    assert "stage 3, passes 4: 2.91 + " in one
    assert "stage 1" not in one
    assert "shortest" not in one


def test_on_a100s_stage_3_waits_most_of_the_step():
    one, three = price("A100", 1, 4), price("A100", 3, 4)
    assert three.seconds > 4 * one.seconds
    assert one.seconds < price("A100", 3, 1).seconds
    assert three.waits > three.seconds / 2
    assert three.held.occupied < one.held.occupied


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
    assert (few if hides else min(fitting(gpu), key=lambda plan: halves(*plan))) == quickest(gpu)


@pytest.mark.parametrize("gpu", CLUSTERS)
def test_states_and_activations_say_what_fits(gpu):
    for stage in STAGES:
        states = model_states(LLAMA.parameters, Plan(RANKS, zero=stage)).total
        for passes in PASSES:
            held = states + SEQUENCES // passes * sequence_bytes()
            assert (held < 80e9) == ((stage, passes) in fitting(gpu))


def test_on_h100s_nearly_all_messages_hide_and_more_passes_compute_longer():
    found = {plan: price("H100", *plan) for plan in fitting("H100")}
    computing = {plan: one.seconds - one.waits for plan, one in found.items()}
    assert all(one.waits < 0.1 * one.seconds for one in found.values())
    assert max(computing, key=computing.__getitem__) == (1, 4)
    assert min(computing, key=computing.__getitem__) == (3, 1)
    assert found[3, 1].seconds < found[1, 4].seconds


def test_stage_1_computes_longest_because_it_keeps_whole_gradients():
    def computes(stage):
        found = price("H100", stage, 4)
        return found.seconds - found.waits

    assert computes(2) == pytest.approx(computes(3))
    assert 0.05 < computes(1) - computes(2) < 0.15


@pytest.mark.parametrize("wrong", [("V100", 1, 1), ("A100", 0, 1), ("A100", 1, 3)])
def test_what_the_chapter_does_not_know_is_refused(wrong):
    with pytest.raises(ValueError, match="must be one of"):
        price(*wrong)
