"""Write the two cells that follow a notebook's title: where else it can be opened, and how Colab gets the course.

``make notebooks`` runs it first. The address of the repository stands in one place, ``[project.urls]`` of
``pyproject.toml``: whoever publishes the course elsewhere changes it there, and runs
``python -m course_lib.grading.opening``. The links are words, because a picture would be fetched from elsewhere.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import click
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from course_lib.grading.build import read_notebook, write_notebook
from course_lib.grading.execute import SETUP, notebooks_in
from course_lib.places import exercise_name

FOLDERS = ("notebooks", "solutions")
LINKS, COLAB = "open-links", "open-colab"  # the ids of the two cells
TAGS = [SETUP, "remove-cell"]  # MyST leaves a cell with the second tag out of a page
CLONE = "/content/course"  # where the course lies in Colab
INSTALL = """\
# In Google Colab this cell installs the course, which takes a few minutes. Elsewhere it does nothing.
import sys

if "google.colab" in sys.modules:
    from importlib.util import find_spec
    from subprocess import check_call

    if find_spec("course_lib") is None:
        clone = "git clone -q --depth 1 {repository} {clone}"
        check_call(f"test -d {clone} || {{clone}}", shell=True)
        check_call([sys.executable, "{clone}/course_lib/jupyter/colab.py"])
        sys.path.insert(0, "{clone}")"""


@dataclass(frozen=True)
class Addresses:
    """Where the course is published.

    Args:
        repository: ``https://github.com/ACCOUNT/NAME``; Colab, Binder and Codespaces open notebooks from there.
        site: the address of the site's first page.
    """

    repository: str
    site: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", self.repository):
            raise ValueError(
                f"Repository in pyproject.toml must be https://github.com/ACCOUNT/NAME, not {self.repository!r}"
            )
        if not re.fullmatch(r"https?://[^\s/]+(/[^\s/]+)*", self.site):
            raise ValueError(f"Documentation in pyproject.toml must be an address, not {self.site!r}")

    @classmethod
    def of(cls, root: Path) -> Addresses:
        """What ``pyproject.toml`` in the folder ``root`` says.

        Raises:
            ValueError: an address is missing or has another form.
        """
        urls = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
        return cls(urls.get("Repository", ""), urls.get("Documentation", ""))

    def links(self, path: str) -> str:
        """The sentence that offers to open a notebook elsewhere; ``path`` is its place in the repository."""
        name = self.repository.removeprefix("https://github.com/")
        places = [
            f"[in Colab](https://colab.research.google.com/github/{name}/blob/main/{path})",
            f"[in Binder](https://mybinder.org/v2/gh/{name}/main?urlpath=lab/tree/{path})",
            f"[in Codespaces](https://codespaces.new/{name})",
        ]
        if path.startswith("notebooks/"):
            places.append(f"[on the site]({self.site}/{path.removesuffix('.ipynb')}.html)")
            return f"You can also open this chapter {', '.join(places[:-1])}, or {places[-1]}."
        return f"You can also open these exercises {', '.join(places[:-1])}, or {places[-1]}."


def opening(path: str, addresses: Addresses) -> list[NotebookNode]:
    """The two cells of the notebook that lies at ``path`` in the repository."""
    folder, _, name = path.partition("/")
    if folder == "solutions":  # of which exercises are made: learners open those
        path = f"exercises/{exercise_name(name.removesuffix('.ipynb'))}"
    install = INSTALL.format(clone=CLONE, repository=addresses.repository)
    return [
        new_markdown_cell(addresses.links(path), id=LINKS),
        new_code_cell(install, id=COLAB, metadata={"jupyter": {"source_hidden": True}, "tags": TAGS}),
    ]


def with_opening(notebook: NotebookNode, path: str, addresses: Addresses) -> NotebookNode:
    """Put the two cells behind the notebook's title, in place of those that are there; all else stays as it is."""
    old = {cell.get("id"): cell for cell in notebook.cells}
    cells = opening(path, addresses)
    cells[1].execution_count = old.get(COLAB, {}).get("execution_count")
    others = [cell for cell in notebook.cells if cell.get("id") not in (LINKS, COLAB)]
    return nbformat.from_dict({**notebook, "cells": [*others[:1], *cells, *others[1:]]})


@click.command()
@click.option("--root", type=click.Path(path_type=Path), default=Path("."), help="the course's folder")
def main(root: Path) -> None:
    """Write where else each notebook can be opened, and the cell that installs the course in Colab."""
    try:
        addresses = Addresses.of(root)
        for path in notebooks_in(tuple(root / folder for folder in FOLDERS)):
            write_notebook(
                with_opening(read_notebook(path), path.relative_to(root).as_posix(), addresses), path
            )
    except ValueError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
