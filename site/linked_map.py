"""The map of chapters, as chapter 00 shows it, with links to the site's pages."""

from __future__ import annotations

from course_lib.chapters.course_map import course_map, notebook_of


def linked_map() -> str:
    """The map as HTML."""
    return f'<div class="course-map">{course_map(link=page_of).html}</div>\n'


def page_of(number: str) -> str:
    """Where the site has a chapter, from its root: ``notebooks/05_ddp.html``."""
    return f"notebooks/{notebook_of(number).removesuffix('.ipynb')}.html"
