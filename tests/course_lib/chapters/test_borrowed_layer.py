"""The pictures of slices that are borrowed for a layer, or shared (chapter 00)."""

import pytest

from course_lib.chapters.borrowed_layer import (
    BORROWED,
    COMING,
    EMPTY,
    OWN,
    plot_borrowed_layer,
    plot_shared_matrix,
)
from simulator.plots.picture import smallest_text


def colours(axis):
    from matplotlib.colors import to_hex

    return [to_hex(patch.get_facecolor()) for patch in axis.patches]


def test_a_layer_is_borrowed_while_it_computes_and_the_next_is_on_its_way():
    picture = plot_borrowed_layer(gpus=4, layers=3)
    moments = [colours(axis) for axis in picture._figure.axes]
    assert [moment.count(OWN) for moment in moments] == [12, 12, 12]
    assert [moment.count(BORROWED) for moment in moments] == [12, 12, 12]
    assert [moment.count(COMING) for moment in moments] == [12, 12, 0]
    assert smallest_text(picture.svg) >= 11
    assert "the next layer's are on their way" in picture.alt


def test_one_gpu_borrows_nothing():
    with pytest.raises(ValueError, match="gpus"):
        plot_borrowed_layer(gpus=1)


def test_two_that_share_a_matrix_borrow_half_of_it_and_together_hold_each_slice_once():
    picture = plot_shared_matrix()
    whole, shared = (colours(axis) for axis in picture._figure.axes)
    assert (whole.count(BORROWED), whole.count(EMPTY)) == (12, 0)
    assert (shared.count(BORROWED), shared.count(EMPTY)) == (4, 8)
    for moment in (whole, shared):
        assert sorted(place % 4 for place, colour in enumerate(moment) if colour == OWN) == [0, 1, 2, 3]
    assert smallest_text(picture.svg) >= 11
