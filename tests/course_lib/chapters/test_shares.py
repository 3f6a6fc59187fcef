"""Bars of equal length: every part in order, with its share and the quantity's total."""

import pytest

from course_lib.chapters.shares import plot_shares

QUANTITIES = {"parameters": {"a": 1e6, "bb": 3e6}, "work": {"a": 9.0, "bb": 1.0}}
UNITS = {"parameters": "B", "work": "FLOP"}


def test_shares_and_totals_are_written():
    picture = plot_shares(QUANTITIES, UNITS, "a network")
    assert picture.alt == "a network: parameters a 25 %, bb 75 %; work a 90 %, bb 10 %."
    for text in ("a network", ">parameters,<", ">4 MB<", ">work,<", ">10 FLOP<", "25 %", "75 %", ">bb<"):
        assert text in picture.svg
    assert picture.svg == plot_shares(QUANTITIES, UNITS, "a network").svg


def test_a_sliver_is_drawn_and_left_without_text():
    picture = plot_shares({"work": {"much": 99.0, "little": 1.0}}, UNITS)
    assert picture.alt == "work much 99 %, little 1 %."
    assert "1 %<" not in picture.svg


def test_a_narrow_part_has_its_share_upright():
    narrow, wide = (plot_shares({"work": {"much": 100.0 - n, "little": n}}, UNITS).svg for n in (4.0, 40.0))
    assert ">4 %<" in narrow
    assert ("rotate(-90" in narrow, "rotate(-90" in wide) == (True, False)


@pytest.mark.parametrize(
    ("quantities", "message"),
    [
        ({}, "at least one quantity"),
        ({"work": {}}, "is nothing in every part"),
        ({"work": {"a": 0}}, "work is nothing in every part"),
        ({"parameters": {"a": 1}, "work": {"b": 1}}, "work has the parts b; the first quantity has a"),
    ],
)
def test_bad_input_says_what_is_wrong(quantities, message):
    with pytest.raises(ValueError, match=message):
        plot_shares(quantities, UNITS)


def test_on_one_scale_amounts_are_written_and_the_longest_bar_is_full():
    rows = {"two\nlines": {"a": 1e6, "bb": 3e6}, "work": {"a": 30e6, "bb": 10e6}}
    picture = plot_shares(rows, dict.fromkeys(rows, "B"), one_scale=True)
    assert picture.alt == "two lines a 1 MB, bb 3 MB; work a 30 MB, bb 10 MB."
    assert ">30 MB<" in picture.svg
    assert " %<" not in picture.svg


def test_a_part_may_have_a_colour_of_its_own():
    assert "#d9d9d9" in plot_shares(QUANTITIES, UNITS, colours={"bb": "#d9d9d9"}).svg
