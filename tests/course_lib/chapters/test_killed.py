"""Chapter 20's runs: who is lost, who is slow, and who goes on."""

from functools import partial

import pytest

from course_lib.by_hand.elastic import Elastic
from course_lib.chapters.killed import (
    DAY,
    PAUSE,
    Try,
    dealt_anew,
    losses_of,
    lost_seconds,
    lost_table,
    one_device,
    plain_step,
    quarter,
    run_ranks,
    samples_taken,
    steps_alike,
)
from course_lib.chapters.lives import plot_lives

run = partial(run_ranks, Elastic, ranks=3, steps=4)


def elastic_step():
    """Made in a function, so that it travels to the ranks as it is: they cannot import this file."""

    def step(me, inputs, targets):
        if not me.together:
            me.meet()
            return None
        try:
            return plain_step(me, inputs, targets, dealt_anew)
        except RuntimeError:
            me.optimizer.zero_grad()
            me.part()
            return None

    return step


def test_samples_that_nobody_takes_are_counted():
    assert samples_taken(dealt_anew, [0, 1, 3]) == 96
    assert samples_taken(quarter, [0, 1, 3]) == 72
    with pytest.raises(ValueError, match=r"me.name 3 and me.rank 2 of 3 members takes no samples: .*range"):
        samples_taken(lambda me, samples: samples.tensor_split(3)[me.name], [0, 1, 3])


def test_a_plain_run_ends_with_the_rank_that_is_killed():
    lives = run(plain_step, {1: 3})
    assert [len([one for one in life if one.loss is not None]) for life in lives] == [2, 2, 2]
    assert plot_lives(lives, {1: 3}).alt.startswith("rank 0 ends with step 2; rank 1 is killed after step 2")


def test_an_elastic_run_goes_on_as_one_device_in_longer_steps():
    lives = run(elastic_step(), {1: 3})
    assert losses_of(lives) == pytest.approx(one_device(4), abs=1e-4)
    assert lives[0][-1].ranks == 2
    for one in (one for one in lives[0] if one.loss is not None):
        assert one.end - one.start > 0.9 * PAUSE * 96 / one.ranks


def test_who_hangs_is_waited_for_until_the_others_meet_without_it():
    lives = run(elastic_step(), {1: 3}, grace=0.05, hang={2: {2: 1.5, 3: 1.5}})
    assert [life[-1].step for life in lives] == [4, 2, 3]
    assert [one.what for one in lives[2]] == ["step", "hangs", "step", "hangs", "step", "left out"]
    assert lives[0][-1].ranks == 1
    assert "rank 2 ends with step 2" in plot_lives(lives, {1: 3}).alt


def test_a_quarter_left_out_changes_the_loss_from_its_step_on():
    alone = one_device(4)
    assert steps_alike(one_device(4, lost_at=3), alone) == 2
    assert steps_alike(alone, alone) == 4
    assert steps_alike([float("nan")] * 4, alone) == 0


def test_lost_are_the_seconds_in_which_who_lives_does_not_train():
    goes_on = [Try(1, 0, 1, 2, "step", None), Try(1, 1, 3, 2, "meets", None), Try(1, 3, 5, 1, "step", 2.0)]
    stays_out = [Try(1, 0, 4, 2, "hangs", None), Try(1, 4, 4.5, 2, "left out", None)]
    assert lost_seconds([goes_on, stays_out]) == 3 + 0.5 + 0.5
    assert lost_seconds([goes_on, stays_out], DAY) == 3 + 0.5 + DAY - 4.5


def test_the_least_that_is_lost_is_marked():
    short = [Try(1, 0, 1, 2, "step", 2.0)], [Try(1, 0, 1, 2, "left out", None)]
    long = [Try(1, 0, 3, 2, "meets", None)], [Try(1, 0, 3, 2, "step", 2.0)]
    assert [line.split() for line in lost_table({4.0: list(long), 1.0: list(short)}).splitlines()[1:]] == [
        ["1.0", "s", "least", "1.0", "s", "24", "hours"],
        ["4.0", "s", "3.0", "s", "least", "3.0", "s"],
    ]
