"""Chapter 08's puzzle: a step whose slices say what runs again."""

from course_lib.chapters.coloured_step import MLP, NOTHING, OUTSIDE, WHOLE, Try, _colour, plot_tries

LABELS = ["forward blocks.0.mlp", "forward blocks.1", "forward blocks.12", "forward head", "backward"]
STEP = Try("yours", LABELS, [3e6, 5e6, 7e6, 20e6, 8e6], whole=[1], mlps=[12])


def test_a_slice_has_the_colour_of_its_block():
    assert [_colour(label, STEP) for label in LABELS] == [NOTHING, WHOLE, MLP, OUTSIDE, OUTSIDE]


def test_the_picture_says_what_fits():
    fits = STEP._replace(title="the cheapest", held=[1e6] * 5)
    alt = plot_tries([STEP, fits], 16e6).alt
    assert "yours: the peak is 20 MB, over the line" in alt
    assert "the cheapest: the peak is 1 MB, under the line" in alt
