"""What comes next: first a lane's chapters, if the reader has named one."""

import json
import re

import pytest

from course_lib.chapters.course_map import FIRST, LANES, exercises_of, notebook_of
from course_lib.notebooks.exercise import read_exercises, read_trusted
from course_lib.notebooks.places import course_root
from course_lib.progress.lane import my_lane
from course_lib.progress.next_step import next_step
from course_lib.progress.points import FILE, choose_lane


@pytest.fixture
def root(tmp_path):
    (tmp_path / "solutions").symlink_to(course_root() / "solutions")
    return tmp_path


def test_without_a_lane_the_first_chapter_is_next(root):
    assert notebook_of(FIRST) in next_step(root)[0]


@pytest.mark.parametrize("lane", LANES)
def test_the_first_chapter_of_the_lane_is_next_and_a_link(root, lane):
    first = LANES[lane][0]
    html = my_lane(lane, root).html()
    assert notebook_of(first) in next_step(root)[0]
    assert re.findall(r'href="([^"]+)"', html) == [
        notebook_of(first),
        f"../exercises/{exercises_of(first)}",
    ]
    opened = json.loads(re.search(r"data-commandlinker-args='([^']+)'", html)[1])
    assert opened == {"path": f"notebooks/{notebook_of(first)}"}


def test_a_lane_goes_on_after_its_first_chapter(root):
    lane, (first, second, *_) = next((lane, numbers) for lane, numbers in LANES.items() if len(numbers) > 3)
    chapter = notebook_of(first).removesuffix(".ipynb")
    exercises = read_exercises(read_trusted(root / "solutions" / f"{chapter}.ipynb"), chapter)
    (root / FILE).write_text(json.dumps({chapter: {each.id: each.points for each in exercises}}))
    choose_lane(lane, root)
    assert notebook_of(second) in next_step(root)[0]
