"""Chapter 08's puzzle: a step whose slices say what runs again."""

from course_lib.chapters.coloured_step import MLP, NOTHING, OUTSIDE, PALE, WHOLE, Try, _colour, plot_tries

LABELS = ["forward blocks.0.mlp", "forward blocks.1", "forward blocks.12", "forward head", "backward"]
STEP = Try("yours", LABELS, [3e6, 5e6, 7e6, 20e6, 8e6], whole=[1], mlps=[12])


def test_a_slice_has_the_colour_of_its_block():
    assert [_colour(label, STEP) for label in LABELS] == [NOTHING, PALE[WHOLE], PALE[MLP], OUTSIDE, OUTSIDE]
    assert _colour("recompute blocks.1.mlp", STEP) == WHOLE
    assert _colour("backward blocks.12", STEP) == MLP


def test_all_tries_are_points():
    alt = plot_tries([STEP], 16e6, 13, [STEP, STEP], {"every MLP": (8, 19e6)}).alt
    assert "points for 2 tries and every MLP" in alt


def test_the_picture_says_what_fits():
    fits = STEP._replace(title="the cheapest", held=[1e6] * 5)
    alt = plot_tries([STEP, fits], 16e6).alt
    assert "yours: the peak is 20 MB, over the line" in alt
    assert "the cheapest: the peak is 1 MB, under the line" in alt
