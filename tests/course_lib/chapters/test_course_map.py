"""The map of the course agrees with the chapters that there are."""

import json
import re
from pathlib import Path

import pytest

from course_lib.chapters.course_map import (
    CHAPTERS,
    FIRST,
    LANES,
    beside_the_lanes,
    course_map,
    leans_on,
    written,
)
from course_lib.notebooks.places import chapters_in

ROOT = Path(__file__).parents[3]


def test_written_chapters_are_the_notebooks():
    written = {f"{number}_{chapter.name}" for number, chapter in CHAPTERS.items() if chapter.minutes}
    assert written == {path.stem for path in chapters_in(ROOT / "notebooks")}


def test_minutes_are_those_that_each_chapter_announces():
    for path in chapters_in(ROOT / "notebooks"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        announced = re.search(r"[Aa]bout (\d+) minutes", prose)
        assert announced, f"{path.name} does not say how long it takes to read"
        assert int(announced[1]) == CHAPTERS[path.stem[:2]].minutes, path.name


def test_chapters_build_on_others_without_a_circle():
    placed: set[str] = set()
    left = dict(CHAPTERS)
    while left:
        ready = [number for number, chapter in left.items() if placed.issuperset(chapter.builds_on)]
        assert ready, f"{', '.join(left)} build on each other"
        placed.update(ready)
        left = {number: chapter for number, chapter in left.items() if number not in placed}


@pytest.mark.parametrize("lane", LANES)
def test_a_lane_is_in_reading_order_and_says_what_else_it_leans_on(lane):
    known = {"00", *leans_on(lane)}
    for number in written(LANES[lane]):
        assert known.issuperset(CHAPTERS[number].builds_on), (
            f"{number} builds on {CHAPTERS[number].builds_on}"
        )
        known.add(number)


def test_every_written_chapter_is_on_the_map_and_a_link():
    shown = course_map()
    numbers = {number for number, chapter in CHAPTERS.items() if chapter.minutes} - {"00"}
    assert set(re.findall(r'href="(\d\d)_\w+\.ipynb"', shown.html)) == numbers
    assert set(re.findall(r"[:,] (\d\d) ", shown.text)) == numbers
    assert "01" in beside_the_lanes(), "an option: no lane needs it"
    assert FIRST == "03"
    assert not any(f'"{number}_' in shown.html for number, c in CHAPTERS.items() if not c.minutes)


def test_the_map_shows_points_by_colour_and_in_words():
    html = course_map({"04": (18, 18), "05": (3, 16), "06": (0, 12)}).html
    assert "data parallelism · 3/16</a>" in html
    assert "collectives · ✓</a>" in html
    assert "ZeRO</a>" in html
    (complete,) = set(
        re.findall(
            r"background: (#\w+); color: #222222; text-decoration", re.search("<a[^>]*>(?=<b>04)", html)[0]
        )
    )
    assert complete != "#ffffff"
