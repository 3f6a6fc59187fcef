"""Write what follows from the map of the course: the footer of chapters, and the README's lanes and minutes.

    python -m course_lib.chapters.footer                          # every chapter
    python -m course_lib.chapters.footer notebooks/05_ddp.ipynb   # this one

Executing a notebook keeps its footer; ``make notebooks`` writes all. Written twice, nothing changes.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import click
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from course_lib.chapters.course_map import (
    CHAPTERS,
    FIRST,
    LANES,
    duration,
    exercises_of,
    notebook_of,
    written,
)
from course_lib.notebooks.build import read_notebook, write_notebook
from course_lib.notebooks.places import chapters_in, course_root

FOOTER = "footer"  # the id of the cell
LANE_ROW = re.compile(r"^\| [^|]+ \| \d\d(?:, \d\d)+ \| \d+ h \d+ min \|\n", re.MULTILINE)


def footer(number: str) -> str:
    """What stands below a chapter: the one before, its exercises, the next one, and each lane that it is in."""
    order = written(list(CHAPTERS))
    at = order.index(number)
    after = FIRST if number == "00" else dict(pairwise(order)).get(number)
    around = [
        f"← {_link(order[at - 1])}" if at else "",
        f"[exercises](../exercises/{exercises_of(number)})" if at else "",
        f"{_link(after)} →" if after else "",
        "[map](00_start_here.ipynb)" if at else "",
    ]
    lanes = []
    for lane, numbers in LANES.items():
        if number in numbers:
            stops = [f"**{n}**" if n == number else f"[{n}]({notebook_of(n)})" for n in written(numbers)]
            lanes.append(f"{lane}: {' · '.join(stops)}")
    return "---\n" + "  \n".join([" | ".join(filter(None, around)), *lanes])


def _link(number: str) -> str:
    return f"[{number} {CHAPTERS[number].title}]({notebook_of(number)})"


def with_footer(notebook: NotebookNode, name: str) -> NotebookNode:
    """The notebook with its footer as the last cell, in place of one that is there; what is no chapter stays as it is.

    Args:
        name: its place in the course: ``"notebooks/05_ddp.ipynb"``.
    """
    found = [number for number in written(list(CHAPTERS)) if name == f"notebooks/{notebook_of(number)}"]
    if not found:
        return notebook
    cells = [cell for cell in notebook.cells if cell.get("id") != FOOTER]
    return NotebookNode({**notebook, "cells": [*cells, new_markdown_cell(footer(found[0]), id=FOOTER)]})


def with_map(readme: str) -> str:
    """The README with the lanes, and the minutes of every chapter, as the map has them."""
    rows = [
        f"| {lane} | {', '.join(written(numbers))} | {duration(written(numbers))} |\n"
        for lane, numbers in LANES.items()
    ]
    first = LANE_ROW.search(readme)
    if first is None:
        raise ValueError("README.md has no table of lanes")
    rest = LANE_ROW.sub("", readme[first.start() :])
    readme = readme[: first.start()] + "".join(rows) + rest
    return re.sub(
        r"^(\| (\d\d) \| \[.+?\) \| )\d+(?= \|)",
        lambda row: f"{row[1]}{CHAPTERS[row[2]].minutes}",
        readme,
        flags=re.MULTILINE,
    )


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True))
def main(paths: tuple[Path, ...]) -> None:
    """Write the footers of the chapters named, or of all, and the README's lanes and minutes."""
    root = course_root()
    for path in paths or chapters_in(root / "notebooks"):
        name = f"{path.resolve().parent.name}/{path.name}"
        write_notebook(with_footer(read_notebook(path), name), path)
    readme = root / "README.md"
    readme.write_text(with_map(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
