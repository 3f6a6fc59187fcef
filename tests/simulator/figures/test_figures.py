"""Every figure: what a call is refused for, its page, its still picture."""

import shutil
from inspect import signature
from math import inf, nan

import pytest

from simulator import figures
from simulator.figures.figure import STILLS
from simulator.figures.stills import drawn, every_figure

MAKERS = {name: getattr(figures, name) for name in figures.__all__ if name.startswith("explore_")}


@pytest.mark.parametrize("name", MAKERS)
def test_a_wrong_value_is_refused_in_a_sentence(name):
    for argument in signature(MAKERS[name]).parameters:
        for wrong in (nan, inf, -1, "x"):
            with pytest.raises(ValueError, match=f" must .* not .*{wrong}"):
                MAKERS[name](**{argument: wrong})


@pytest.mark.parametrize("name", MAKERS)
def test_a_page_needs_nothing_from_elsewhere(name):
    page = MAKERS[name]().html().replace("http://www.w3.org/2000/svg", "")
    assert not [word for word in ("http://", "https://", "src=", "@import", "url(") if word in page]


def test_the_kept_pictures_are_what_the_scripts_draw():
    if not shutil.which("node"):
        pytest.skip("there is no node to draw in: `apt-get install nodejs`")
    wanted = every_figure()
    assert {path.name for path in STILLS.glob("*.svg")} == set(wanted)
    for name, figure in wanted.items():
        assert (STILLS / name).read_text(encoding="utf-8") == drawn(figure), name
        assert figure.still()["text/html"].startswith('<div class="explorer-still"><img alt="')
    other = figures.explore_unequal(slowness=2.25)
    assert other.still()["text/plain"] == "One layer on a fast and a slow device: run this cell to see it."
