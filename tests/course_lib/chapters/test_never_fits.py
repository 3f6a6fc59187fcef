"""The bars of what a GPU holds: states, then activations, and the line where it is full."""

import pytest

from course_lib.chapters.never_fits import plot_never_fits


def test_activations_begin_where_states_end():
    picture = plot_never_fits({"8 GPUs": (44e9, 84e9)}, 80e9, "an A100")
    states, activations = picture._figure.axes[0].patches
    assert (states.get_width(), activations.get_x(), activations.get_width()) == pytest.approx((44, 44, 84))
    assert "line at 80 GB. 8 GPUs: 44 + 84 GB." in picture.alt


@pytest.mark.parametrize(("bars", "words"), [({}, "nothing to draw"), ({"a": (-1, 0)}, "bytes")])
def test_what_cannot_be_drawn_is_refused(bars, words):
    with pytest.raises(ValueError, match=words):
        plot_never_fits(bars, 80e9, "an A100")
