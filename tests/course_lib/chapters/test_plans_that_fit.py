"""The bars of plans: a plan that does not fit has no time."""

import pytest

from course_lib.chapters.plans_that_fit import plot_plans_that_fit


def test_only_a_plan_that_fits_has_a_time():
    plans = {"2": ((40e9, 54e9, 9e9), 5.0, 1.0), "4": ((30e9, 39e9, 6e9), 5.8, 1.8)}
    picture = plot_plans_that_fit(plans, 80e9)
    memory, time = picture._figure.axes
    assert [bar.get_width() for bar in memory.patches] == pytest.approx([40, 54, 9, 30, 39, 6])
    assert [bar.get_x() for bar in memory.patches] == pytest.approx([0, 40, 94, 0, 30, 69])
    assert [bar.get_width() for bar in time.patches] == pytest.approx([5.8, 1.8])
    assert picture.alt.endswith("2: 40 + 54 + 9 GB, does not fit; 4: 30 + 39 + 6 GB, 7.6 s.")


@pytest.mark.parametrize(("plans", "words"), [({}, "nothing to draw"), ({"a": ((1, 1, 1), -1, 0)}, "plan")])
def test_what_cannot_be_drawn_is_refused(plans, words):
    with pytest.raises(ValueError, match=words):
        plot_plans_that_fit(plans, 80e9)


def test_no_number_lies_on_the_line():
    picture = plot_plans_that_fit(
        {"2": ((11e9, 54e9, 7e9), 1.0, 1.0), "4": ((6e9, 39e9, 5e9), 1.0, 1.0)}, 80e9
    )
    numbers = picture._figure.axes[0].texts
    assert [(number.get_text(), number.xy[0]) for number in numbers] == [("72", 80), ("50", 50)]
