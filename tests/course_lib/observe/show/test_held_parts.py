"""The picture of what each rank holds of an activation, from module to module."""

import re

import pytest

from course_lib.observe.show.held_parts import Held, plot_held

STEPS = [
    Held("norm", (4, 6), (8, 6)),
    Held("first matrix", (8, 12), (8, 24), before="g:\nall-gather"),
    Held("second matrix", (8, 6), (8, 6), partial=True),
    Held("whole", (8, 6), (8, 6)),
]


def test_the_sentence_says_what_each_rank_has():
    assert plot_held({"with shards": STEPS}).alt == (
        "with shards: each rank has after norm its own tokens, after first matrix its own columns, "
        "after second matrix its part of the sum, after whole everything."
    )


def test_ranks_fill_different_halves():
    tokens, columns = STEPS[0], STEPS[1]
    assert tokens.box(0) == (0, 0, 1, 0.5)
    assert tokens.box(1) == (0, 0.5, 1, 0.5)
    assert columns.box(1) == (0.5, 0, 0.5, 1)
    assert STEPS[3].box(1) == (0, 0, 1, 1)


def test_the_picture_fits_a_notebook_and_names_what_is_sent():
    picture = plot_held({"without": STEPS, "with": STEPS})
    assert float(re.search(r'width="([\d.]+)"', picture.svg)[1]) <= 640
    assert picture.svg.count("all-gather") == 2


@pytest.mark.parametrize(("panels", "ranks"), [({}, 2), ({"a": []}, 2), ({"a": STEPS}, 5), ({"a": STEPS}, 0)])
def test_what_cannot_be_drawn_is_refused(panels, ranks):
    with pytest.raises(ValueError):
        plot_held(panels, ranks)
