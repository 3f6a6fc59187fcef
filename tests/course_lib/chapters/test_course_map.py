"""The map of the course agrees with the chapters that there are, and with the README."""

import json
import re
from pathlib import Path

import pytest

from course_lib.chapters.course_map import CHAPTERS, COMPLETE, PATHS, course_map, course_paths
from course_lib.notebooks.places import chapters_in

ROOT = Path(__file__).parents[3]


def test_written_chapters_are_the_notebooks():
    written = {f"{number}_{chapter.name}" for number, chapter in CHAPTERS.items() if chapter.minutes}
    assert written == {path.stem for path in chapters_in(ROOT / "notebooks")}


def test_minutes_are_those_of_the_readme():
    rows = re.findall(r"^\| (\d\d) \|.*?\| (\d+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {n: int(m) for n, m in rows} == {n: c.minutes for n, c in CHAPTERS.items() if c.minutes}


def test_minutes_are_those_that_each_chapter_announces():
    for path in chapters_in(ROOT / "notebooks"):
        first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        announced = re.search(r"[Aa]bout (\d+) minutes", first)
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


@pytest.mark.parametrize("purpose", PATHS)
def test_a_path_leaves_out_nothing_that_its_chapters_build_on(purpose):
    read = {"00"}
    for number in PATHS[purpose]:
        assert read.issuperset(CHAPTERS[number].builds_on), f"{number} builds on {CHAPTERS[number].builds_on}"
        read.add(number)


def test_the_map_shows_points_and_names_what_builds_on_what():
    picture = course_map({"04": (18, 18), "05": (3, 16)})
    assert "06 builds on 03, 05" in repr(picture)
    html = picture.svg if hasattr(picture, "svg") else picture.html
    assert "3/16 points" in html
    assert not hasattr(picture, "svg") or COMPLETE in html


def test_paths_count_the_hours_of_written_chapters():
    assert "3.8" in repr(course_paths())  # 35 + 35 + 40 + 40 + 40 + 40 minutes
    assert "(21)" in repr(course_paths())
