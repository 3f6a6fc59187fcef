"""Chapter 25's new rows: how good the model is with them."""

import pytest

from course_lib.chapters.new_rows import plot_recovery
from simulator.plots.picture import smallest_text


def test_curves_begin_at_their_chances_below_the_old_one():
    picture = plot_recovery({"yours": [22.0, 60.0, 72.0], "all alike": [10.0, 30.0, 50.0]}, 5, before=72)
    assert picture.alt.endswith("over 10 steps, 72 before. yours: from 22 to 72; all alike: from 10 to 50.")
    assert smallest_text(picture.svg) >= 11
    with pytest.raises(ValueError, match="1 to 3 curves, not 0"):
        plot_recovery({}, 5, before=72)
