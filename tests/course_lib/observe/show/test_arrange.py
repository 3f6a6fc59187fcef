"""Several pictures in one output keep their order, their titles and their sentences."""

import re

import pytest

from course_lib.observe.show.arrange import beside, folded
from course_lib.observe.show.tables import table
from simulator.plots.picture import Picture

PICTURES = {"before <it>": Picture("<svg></svg>", "a circle"), "after": Picture("<svg></svg>", "a square")}


@pytest.mark.parametrize("arrange", [beside, folded])
def test_every_picture_with_its_title_and_sentence(arrange):
    shown = arrange(PICTURES)
    assert repr(shown) == "before <it>: a circle\nafter: a square"
    assert re.findall('alt="(.*?)"', shown.html) == ["a circle", "a square"]
    assert shown.html.index("before &lt;it&gt;") < shown.html.index("after")


def test_folded_opens_the_first():
    assert folded(PICTURES).html.count("<details open>") == 1
    assert "<details open>" not in folded(PICTURES, opened=0).html


def test_tables_can_stand_beside_pictures():
    shown = beside({"numbers": table(["a", "b"], [["x", 1]])})
    assert '<td style="text-align:right">1</td>' in shown.html


@pytest.mark.parametrize("arrange", [beside, folded])
def test_nothing_is_refused(arrange):
    with pytest.raises(ValueError, match="at least one picture"):
        arrange({})
