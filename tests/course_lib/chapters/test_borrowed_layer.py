"""The picture of slices that are borrowed for a layer (chapter 00)."""

import pytest

from course_lib.chapters.borrowed_layer import BORROWED, OWN, plot_borrowed_layer
from simulator.plots.picture import smallest_text


def colours(axis):
    from matplotlib.colors import to_hex

    return [to_hex(patch.get_facecolor()) for patch in axis.patches]


def test_only_while_a_layer_computes_are_slices_of_it_borrowed():
    picture = plot_borrowed_layer(gpus=4, layers=3)
    before, during, after = (colours(axis) for axis in picture._figure.axes)
    assert before == after
    assert [moment.count(OWN) for moment in (before, during)] == [12, 12]
    assert [moment.count(BORROWED) for moment in (before, during)] == [0, 12]
    assert smallest_text(picture.svg) >= 11
    assert "While layer 2 computes" in picture.alt


def test_one_gpu_borrows_nothing():
    with pytest.raises(ValueError, match="gpus"):
        plot_borrowed_layer(gpus=1)
