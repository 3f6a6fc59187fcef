"""The picture of what each rank holds of an activation, from module to module."""

import re

import pytest

from course_lib.observe.show.held_parts import FILLED, PALE, Held, plot_held

STEPS = [
    Held("norm", (4, 6), (8, 6)),
    Held("first matrix", (8, 12), (8, 24), before="g:\nall-gather"),
    Held("second matrix", (8, 6), (8, 6), partial=True),
    Held("whole", (8, 6), (8, 6)),
]


def test_the_sentence_says_what_each_rank_has():
    assert plot_held({"with shards": STEPS}).alt == (
        "with shards: each rank has of norm its own tokens, of first matrix its own columns, "
        "of second matrix its part of the sum, of whole everything."
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


def test_equal_tokens_have_one_colour_on_all_ranks():
    whole, own, term = STEPS[3], STEPS[0], STEPS[2]
    for step, times in ((whole, 2), (own, 1)):
        assert [plot_held({"a": [step]}).svg.count(colour) for colour in FILLED[:2]] == [times, times]
    assert plot_held({"a": [term]}).svg.count(PALE[1]) == 2


def test_terms_are_hatched_in_another_direction_on_each_rank():
    svg = plot_held({"a": [STEPS[2]]}).svg
    first, second = re.findall(r'd="M[\d.]+,([\d.]+) L[\d.]+,([\d.]+) M', svg)[::2]  # two strips on a rank
    assert float(first[0]) > float(first[1])
    assert float(second[0]) < float(second[1])


def test_arrows_of_backward_point_left():
    ends = (re.findall(r'd="M([\d.]+),[\d.]+ H([\d.]+)', plot_held({"a": STEPS}, back=b).svg) for b in (0, 1))
    for forward, backward in zip(*ends, strict=True):
        assert forward == backward[::-1]
        assert float(forward[0]) < float(forward[1])


@pytest.mark.parametrize(("panels", "ranks"), [({}, 2), ({"a": []}, 2), ({"a": STEPS}, 5), ({"a": STEPS}, 0)])
def test_what_cannot_be_drawn_is_refused(panels, ranks):
    with pytest.raises(ValueError):
        plot_held(panels, ranks)
