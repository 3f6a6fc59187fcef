"""The picture of memory over the length of a text."""

import pytest

from course_lib.chapters.kept_over_length import full_at, plot_kept_over_length
from simulator.plots.picture import smallest_text

LENGTHS = range(100, 2001, 100)
KEPT = {"scores": {n: 40e3 * n**2 for n in LENGTHS}, "tiles": {n: 50e6 * n for n in LENGTHS}}


def test_a_line_ends_where_the_device_is_full():
    picture = plot_kept_over_length(KEPT, 80e9, "one H100", 2000)
    assert picture.alt.endswith("80 GB are full: scores at 1,400 tokens; tiles at 1,600 tokens.")
    assert "full at 1,600 tokens" in picture.svg
    assert smallest_text(picture.svg) >= 11
    assert full_at({10: 5.0, 20: 15.0}, 10.0) == 15


@pytest.mark.parametrize(
    ("kept", "words"), [({}, "1 to 3 programs"), ({"a": {1: 2.0}}, "never fills 80 GB: give longer texts")]
)
def test_what_cannot_be_drawn_is_refused(kept, words):
    with pytest.raises(ValueError, match=words):
        plot_kept_over_length(kept, 80e9, "one H100", 10)
