"""The bars of plans: a plan that does not fit has no time."""

import pytest

from course_lib.chapters.plans_that_fit import plot_plans_that_fit


def test_only_a_plan_that_fits_has_a_time():
    picture = plot_plans_that_fit({"2": (103e9, 5.0, 1.0), "4": (75e9, 5.8, 1.8)}, 80e9)
    memory, time = picture._figure.axes
    assert [bar.get_width() for bar in memory.patches] == pytest.approx([103, 75])
    assert [bar.get_width() for bar in time.patches] == pytest.approx([5.8, 1.8])
    assert picture.alt.endswith("2: 103 GB, does not fit; 4: 75 GB, 7.6 s.")


@pytest.mark.parametrize(("plans", "words"), [({}, "nothing to draw"), ({"a": (1, -1, 0)}, "plan")])
def test_what_cannot_be_drawn_is_refused(plans, words):
    with pytest.raises(ValueError, match=words):
        plot_plans_that_fit(plans, 80e9)
