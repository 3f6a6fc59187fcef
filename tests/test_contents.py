"""The table of contents is made from its list, and each of its lines leads somewhere."""

import re

import pytest

from course_lib.chapters.contents import PAGE, contents, page

ITEMS = [item for items in contents().values() for item in items]


def test_the_page_is_the_list():
    assert PAGE.read_text(encoding="utf-8") == page().rstrip() + "\n", (
        "run python -m course_lib.chapters.contents"
    )


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: re.sub(r"\W+", " ", item.what))
def test_it_is_taught_done_and_tested(item):
    for path in filter(None, item[1:]):
        assert path.exists(), f"{item.what}: there is no {path}"


def test_nothing_stands_twice():
    names = [item.what for item in ITEMS]
    assert len(set(names)) == len(names)
