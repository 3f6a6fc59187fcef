"""In JupyterLab, no text in a picture is under 11 px, cut, painted over or on other text, no word of a listing is
broken over two lines, and nothing that is folded shows a line of itself; at two widths of the window.

``python tests/browser/look.py NOTEBOOK`` says the same of one notebook, and photographs it.
"""

import json

import pytest
from notebook_page import all_cells_shown, open_page, open_without_kernel, told_in_place, unfold
from pictures import broken_words, picture_problems, text_problems
from server import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WIDTHS = (1100, 1400)  # px
NOTEBOOKS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("notebooks", "solutions")
    for path in (ROOT / folder).glob("*.ipynb")
    if "data:image/svg+xml" in path.read_text(encoding="utf-8")
)
TEXTS = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 400 200">
<g transform="scale(0.5)"><text x="20" y="40" font-size="20">ten pixels</text></g>
<text x="350" y="40" font-size="20">reaches out</text>
<text x="20" y="100" font-size="20">one</text><text x="30" y="104" font-size="20">over</text>
<text x="200" y="100" font-size="20">hidden</text><rect x="190" y="80" width="90" height="30" fill="gray"/>
<rect x="20" y="130" width="90" height="30" fill="#eee"/><text x="25" y="150" font-size="20">fine</text>
<text x="320" y="170" font-size="20" transform="rotate(-90 320 170)">upright</text></svg>"""


@pytest.fixture(scope="module")
def blank(browser):
    page = browser.new_page()
    yield page
    page.close()


def test_the_measurement_finds_each_kind_of_problem(blank):
    found = text_problems(blank, TEXTS, 400, 200)
    assert {(kind, text) for kind, text, _ in found} == {
        ("small", "ten pixels"),
        ("cut", "reaches out"),
        ("overlap", "one"),
        ("covered", "hidden"),
    }
    halved = text_problems(blank, TEXTS, 200, 100)
    assert len([kind for kind, _, _ in halved if kind == "small"]) == TEXTS.count("<text")


HELVETICA = 871  # px: a word, 100 px high, in Helvetica, Arial or Liberation Sans
WIDTH = """() => { const pen = document.createElement("canvas").getContext("2d");
    pen.font = "100px Helvetica, Arial"; return pen.measureText("AdaptiveAvgPool2d").width; }"""


@pytest.fixture(scope="module")
def first_page(window, blank, lab):
    """JupyterLab, opened once: loading it takes longer than to look at a notebook."""
    if blank.evaluate(WIDTH) > 1.02 * HELVETICA:
        pytest.skip(
            "pictures are drawn for Helvetica's widths, which no font here has: install fonts-liberation"
        )
    open_page(window, lab)
    return window


def outputs_of(folder, path):
    """Write what the notebooks of a folder show into one, without texts and sources; where each of its cells stood."""
    cells, places = [], []
    for notebook in (each for each in NOTEBOOKS if each.startswith(folder)):
        content = json.loads((ROOT / notebook).read_text(encoding="utf-8"))
        for k, cell in enumerate(content["cells"]):
            if cell.get("outputs"):
                cells.append(cell | {"source": "", "id": f"cell-{len(cells)}"})
                places.append(f"{notebook}, cell {k}")
    path.write_text(json.dumps(content | {"cells": cells}), encoding="utf-8")
    return places


@pytest.mark.parametrize("folder", ["notebooks", "solutions"])
def test_the_text_in_pictures_can_be_read(first_page, blank, lab, folder):
    """In one notebook for all: to open one takes longer than to look at its pictures."""
    page, name = first_page, f"{folder}/99_all.ipynb"
    places = outputs_of(folder, lab.root / name)
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    open_without_kernel(page, name)
    all_cells_shown(page)
    assert told_in_place(page) == []
    unfold(page)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        cells, problems = picture_problems(page, blank)
        with_pictures = {places[cell].partition(",")[0] for cell in cells}
        assert with_pictures == {each for each in NOTEBOOKS if each.startswith(folder)}
        found = [f"{places[each.cell]}: {each.kind}, {each.text!r}, {each.detail}" for each in problems]
        assert not found, "\n".join([f"{width} px:", *found])
        assert broken_words(page) == []
