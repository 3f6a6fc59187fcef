"""The README's chapter table and the notebooks agree."""

import re
from pathlib import Path

from course_lib.notebooks.places import chapters_in

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_chapter_is_in_the_table_with_its_minutes():
    listed = re.findall(r"^\| (\d\d) \| \[.+?\]\(notebooks/(.+?\.ipynb)\) \| (\d+) \|", README, re.MULTILINE)
    assert [name for _, name, _ in listed] == [p.name for p in chapters_in(ROOT / "notebooks")]
    assert all(name.startswith(number) and 10 <= int(minutes) <= 40 for number, name, minutes in listed)


def test_a_path_takes_as_long_as_its_chapters():
    minutes = {
        number: int(m) for number, m in re.findall(r"^\| (\d\d) \| .+? \| (\d+) \|", README, re.MULTILINE)
    }
    paths = re.findall(r"\| (\d\d(?:, \d\d)+) \| (\d+) h (\d+) min \|", README)
    assert len(paths) >= 2
    for chapters, hours, rest in paths:
        assert sum(minutes[number] for number in chapters.split(", ")) == 60 * int(hours) + int(rest), (
            chapters
        )
