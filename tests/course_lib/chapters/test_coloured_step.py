"""Chapter 08's puzzle: a step whose slices say what runs again."""

from course_lib.chapters.coloured_step import (
    MLP,
    NOTHING,
    OUTSIDE,
    PALE,
    WHOLE,
    Try,
    _colour,
    _numbers,
    plot_points,
    plot_tries,
)

LABELS = ["forward blocks.0.mlp", "forward blocks.1", "forward blocks.12", "forward head", "backward"]
STEP = Try("yours", LABELS, [3e6, 5e6, 7e6, 20e6, 8e6], whole=[1], mlps=[12])


def test_a_slice_has_the_colour_of_its_block():
    assert [_colour(label, STEP) for label in LABELS] == [NOTHING, PALE[WHOLE], PALE[MLP], OUTSIDE, OUTSIDE]
    assert _colour("recompute blocks.1.mlp", STEP) == WHOLE
    assert _colour("backward blocks.12", STEP) == MLP


def test_each_block_has_its_number_in_forward_and_in_backward():
    labels = ["forward", "forward blocks.0.mlp", "forward blocks.0", "backward", "recompute blocks.0"]
    assert _numbers(labels, begin=3) == ([1.5, 4], ["0", "0"])


def test_all_tries_are_points():
    alt = plot_tries([STEP], 16e6, 13, [STEP, STEP], {"every MLP": (8, 19e6)}).alt
    assert "points for 2 tries and every MLP" in alt


def test_the_picture_says_what_fits():
    fits = STEP._replace(title="the cheapest", held=[1e6] * 5)
    alt = plot_tries([STEP, fits], 16e6).alt
    assert "yours: the peak is 20 MB, over the line" in alt
    assert "the cheapest: the peak is 1 MB, under the line" in alt


def test_the_tries_on_a_large_model_are_points_beside_the_known_ones():
    alt = plot_points([(18.9, 74e9), (17.6, 75e9)], 76e9, 17.5, {"every block": (26.9, 42e9)}).alt
    assert "points for 2 tries; every block 42 GB, 26.9 %." in alt
    inside = plot_points([], 76e9, 17.5, {"the least": (17.3, 75e9)})
    assert "points for 0 tries; the least 75 GB" in inside.alt
    assert "fits" in inside.svg
