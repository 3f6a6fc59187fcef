"""Chapter 08's step, in which some blocks run again, and its pictures."""

import pytest

from course_lib.chapters.recomputed_step import plot_steps, step_of
from course_lib.chapters.second_run import plot_block
from simulator.predict.recomputation import Segment, peak_bytes


@pytest.mark.parametrize("again", [(), (0,), (3,), (0, 2), (1, 3), range(4)])
def test_the_peak_is_that_of_the_simulator(again):
    blocks = [Segment(2, 5) if i in again else Segment(7) for i in range(4)]
    assert step_of(2, 5, 4, again).peak == peak_bytes(blocks)


def test_at_the_end_nothing_is_left():
    step = step_of(2, 5, 4, (1, 2), head=3)
    assert (step.kept[-1], step.back[-1]) == (0, 0)
    assert step.times[-1] == 4 + 1.5 + 2 * 4 + 2  # two blocks run once more


def test_the_last_block_alone_frees_only_the_logits():
    peaks = [step_of(2, 5, 4, again, head=3).peak for again in ((), (0,), (3,))]
    assert peaks == [31, 26, 28]


def test_the_first_run_of_a_block_needs_room_too():
    step = step_of(2, 5, 2, (0, 1), passing=4)
    assert list(map(sum, zip(step.kept[:5], step.back[:5], strict=True))) == [0, 6, 2, 8, 4]
    assert step_of(2, 5, 2, passing=4).peak == 14, "a block that runs once keeps all that it needs"


def test_a_second_run_may_be_shorter_than_the_first():
    long, short = (step_of(2, 5, 4, range(4), second=second) for second in (1, 0.75))
    assert (long.times[-1] - short.times[-1], long.peak) == (1, short.peak)


def test_no_such_block():
    with pytest.raises(ValueError, match="0 to 3, so 4 is none"):
        step_of(2, 5, 4, (4,))


def test_what_lies_below_counts_at_the_peak():
    steps = [step_of(2e9, 5e9, 4), step_of(2e9, 5e9, 4, range(4))]
    alt = plot_steps(steps, ["kept", "thrown away"], ["activations"], ("weights", 10e9), ("a GPU", 20e9)).alt
    assert "kept: the peak is 38 GB; thrown away: the peak is 23 GB" in alt
    assert "From below: weights, activations" in alt


def test_what_stays_free_is_marked():
    alt = plot_steps(
        [step_of(2e9, 5e9, 4), step_of(2e9, 5e9, 4, range(4))],
        ["kept", "thrown away"],
        ["activations"],
        line=("a GPU", 20e9),
    ).alt
    assert "kept: the peak is 28 GB; thrown away: the peak is 13 GB, 7 GB free." in alt


def test_what_one_block_brings_back_is_not_kept():
    step = step_of(2, 5, 4, (1, 2), head=3)
    assert (max(step.kept), max(step.back)) == (2 * 2 + 2 * 7 + 3, 5)


def test_what_comes_back_is_named():
    assert (
        "From below: inputs, a block."
        in plot_steps([step_of(2, 5, 4)], ["a step"], ["inputs", "a block"]).alt
    )


SIZES = {"x": 1, "norm": 1, "up": 4}


def test_what_runs_again_is_marked():
    alt = plot_block(SIZES, ["norm"], "down").alt
    assert alt.endswith("x 1.0 GB; norm 1.0 GB, again; up 4.0 GB; down.")


def test_what_is_added_to_the_residual_is_kept_as_the_sum():
    alt = plot_block(SIZES, ["norm"], "down", ["norm", "down"]).alt
    assert alt.endswith("x 1.0 GB; the sum after norm 1.0 GB, again; up 4.0 GB; down.")


def test_only_the_prices_that_are_given_are_told():
    alt = plot_block(SIZES, ["norm"], "down", prices={"norm": 0.2}).alt
    assert alt.endswith("norm 1.0 GB, 0.2 % longer, again; up 4.0 GB; down.")


def test_blue_may_mean_something_else():
    alt = plot_block(SIZES, ["norm"], "down", names=("kept anyway", "an A reads it")).alt
    assert alt.endswith("norm 1.0 GB, an A reads it; up 4.0 GB; down.")


@pytest.mark.parametrize("name", ["x", "down", "core"])
def test_the_input_and_what_is_none_of_the_blocks_cannot_run_again(name):
    with pytest.raises(ValueError, match=f"'{name}' cannot run again: the names are 'norm', 'up'"):
        plot_block(SIZES, [name], "down")


def test_steps_beside_each_other_mark_no_sliver_of_free_memory():
    alt = plot_steps([step_of(2e9, 5e9, 4)] * 3, ["a", "b", "c"], ["kept"], line=("a GPU", 29e9)).alt
    assert "free" not in alt
