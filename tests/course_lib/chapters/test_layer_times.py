"""The bars of one layer: computing, then sending."""

import pytest

from course_lib.chapters.layer_times import plot_layer_times


def test_sending_begins_where_computing_ends():
    picture = plot_layer_times({"1 GPU": (0.1, 0.0), "8 GPUs": (0.02, 0.03)})
    *_, computing, sending = picture._figure.axes[0].patches
    assert (computing.get_width(), sending.get_x(), sending.get_width()) == pytest.approx((20, 20, 30))
    assert "1 GPU: 100.0 ms; 8 GPUs: 20.0 + 30.0 ms" in picture.alt


@pytest.mark.parametrize(("bars", "words"), [({}, "nothing to draw"), ({"a": (-1, 0)}, "seconds")])
def test_what_cannot_be_drawn_is_refused(bars, words):
    with pytest.raises(ValueError, match=words):
        plot_layer_times(bars)


def test_a_step_is_measured_in_seconds():
    picture = plot_layer_times({"8 share": (6.2, 1.7)}, "a step", "s")
    assert picture.alt == "Time of a step, computing and sending. 8 share: 6.2 + 1.7 s."
