"""Chapter 25's new rows: how good the model is with them."""

import pytest

from course_lib.chapters.new_rows import plot_recovery, plot_starts
from simulator.plots.picture import smallest_text


def test_curves_begin_at_their_chances_below_the_old_one():
    picture = plot_recovery({"yours": [22.0, 60.0, 72.0], "all alike": [10.0, 30.0, 50.0]}, 5, before=72)
    assert picture.alt.endswith("over 10 steps, 72 before. yours: from 22 to 72; all alike: from 10 to 50.")
    assert smallest_text(picture.svg) >= 11
    with pytest.raises(ValueError, match="1 to 3 curves, not 0"):
        plot_recovery({}, 5, before=72)


def test_each_pair_of_starts_has_a_place():
    chances = {
        (read, write): 10.0 * (read == write) for read in ("first", "last") for write in ("first", "last")
    }
    picture = plot_starts(chances)
    assert picture.alt.endswith(
        "first and first: 10; first and last: 0; last and first: 0; last and last: 10."
    )
    assert smallest_text(picture.svg) >= 11
    with pytest.raises(ValueError, match="each start of one matrix"):
        plot_starts({("first", "first"): 1, ("last", "last"): 2})
