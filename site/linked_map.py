"""The map of chapters, as chapter 00 shows it, with links to the site's pages."""

from __future__ import annotations

import re

from course_lib.chapters.course_map import course_map, notebook_of


def linked_map() -> str:
    """The map as HTML."""
    return f'<div class="course-map">{course_map(link=page_of).html}</div>\n'


def page_of(number: str) -> str:
    """Where the site has a chapter, from its root: ``notebooks/05_ddp.html``."""
    return f"notebooks/{notebook_of(number).removesuffix('.ipynb')}.html"


def linked_numbers(markdown: str) -> str:
    """Markdown in which each list of chapters that is a cell of a table, such as ``| 03, 08 |``, becomes links."""

    def links(cell: re.Match) -> str:
        return re.sub(r"\d\d", lambda n: f"[{n[0]}](notebooks/{notebook_of(n[0])})", cell[0])

    return re.sub(r"(?<=\| )\d\d(?:, \d\d)+(?= \|)", links, markdown)
