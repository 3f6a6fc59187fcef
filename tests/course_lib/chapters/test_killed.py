"""Chapter 20's runs and its game: who is lost, who goes on, and what agent A does next."""

from functools import partial

import pytest

from course_lib.by_hand.elastic import Elastic
from course_lib.chapters.agent_game import play, plot_play
from course_lib.chapters.killed import losses_of, one_device, plain_step, run_ranks
from course_lib.chapters.lives import plot_lives

run = partial(run_ranks, Elastic, ranks=3, steps=4)


def test_a_plain_run_ends_with_the_rank_that_is_killed():
    lives = run(plain_step, {1: 3})
    assert [len([one for one in life if one.loss is not None]) for life in lives] == [2, 2, 2]
    assert plot_lives(lives, {1: 3}).alt.startswith("rank 0 ends with step 2; rank 1 is killed after step 2")


def test_an_elastic_run_goes_on_as_one_device():
    def elastic(me, inputs, targets):
        if not me.together:
            me.meet()
            return None
        try:
            return plain_step(me, inputs, targets)
        except RuntimeError:
            me.optimizer.zero_grad()
            me.part()
            return None

    lives = run(elastic, {1: 3})
    assert losses_of(lives) == pytest.approx(one_device(4), abs=1e-4)
    assert lives[0][-1].ranks == 2


def test_agent_a_waits_for_a_last_call_and_for_a_silent_agent():
    played = play({"A": range(61), "B": range(3, 40), "C": range(7, 61), "D": range(50, 61)}, 60)
    found = {one.second: one.did for one in played}
    assert [found[second]["A"] for second in (10, 14, 43, 47)] == [
        "change nothing",
        "seal the round",
        "change nothing",
        "seal the round",
    ]
    assert found[45]["C"] == "call B dead and open round 2"
    assert "second 50, D: wait for the next round" in plot_play(played, start=30).alt
