"""Write where else the course can be opened: two cells behind each notebook's title, and a paragraph of the README.

The first cell holds the links, the second installs the course in Colab. The address of the repository stands in one
place, ``[project.urls]`` of ``pyproject.toml``. Until it names an account, no link and no such cell is written.
Whoever publishes the course puts the address there, and runs ``python -m course_lib.notebooks.opening``; ``make
notebooks`` runs it first, too. The links are words, because a picture would be fetched from elsewhere.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import click
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from course_lib.notebooks.build import build, read_notebook, write_notebook
from course_lib.notebooks.execute import SETUP, notebooks_in
from course_lib.notebooks.places import exercise_name

FOLDERS = ("notebooks", "solutions")
LINKS, COLAB = "open-links", "open-colab"  # the ids of the two cells
TAGS = [SETUP, "remove-cell"]  # MyST leaves a cell with the second tag out of a page
CLONE = "/content/course"  # where the course lies in Colab
NOT_NAMED = "account-not-named-yet-see-pyproject-toml"  # GitHub allows 39 characters: it is nobody's for ever
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
NO_LINKS = (
    f"No links are shown: in pyproject.toml, put your account in place of {NOT_NAMED}; then run this again."
)
IN_A_BROWSER = (
    "In a browser alone: every notebook begins with links that open it in Colab, Binder or Codespaces. Colab keeps "
    "your answers in its own copy of the notebook, so run the checks there, and not `course grade`. The chapters "
    "and their results can also be read [on the site]({site}).\n\n"
)


@dataclass(frozen=True)
class Addresses:
    """Where the course is published.

    Args:
        repository: ``https://github.com/ACCOUNT/NAME``; Colab, Binder and Codespaces open notebooks from there.
        documentation: the address of the site's first page, where it is not on GitHub's pages of the repository.
    """

    repository: str
    documentation: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", self.repository):
            raise ValueError(
                f"Repository in pyproject.toml must be https://github.com/ACCOUNT/NAME, not {self.repository!r}"
            )
        if not re.fullmatch(r"https?://[^\s/]+(/[^\s/]+)*", self.site):
            raise ValueError(f"Documentation in pyproject.toml must be an address, not {self.site!r}")

    @classmethod
    def of(cls, root: Path) -> Addresses | None:
        """What ``pyproject.toml`` in the folder ``root`` says; None until it names an account.

        Raises:
            ValueError: an address is missing or has another form.
        """
        urls = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
        addresses = cls(urls.get("Repository", ""), urls.get("Documentation", ""))
        return None if NOT_NAMED in addresses.repository else addresses

    @property
    def name(self) -> str:
        """``ACCOUNT/NAME``."""
        return self.repository.removeprefix("https://github.com/")

    @property
    def site(self) -> str:
        """The address of the site's first page, without a slash at its end."""
        account, name = self.name.split("/")
        return self.documentation or f"https://{account.lower()}.github.io/{name}"

    def links(self, path: str) -> str:
        """The sentence that offers to open a notebook elsewhere; ``path`` is its place in the repository."""
        places = [
            f"[in Colab](https://colab.research.google.com/github/{self.name}/blob/main/{path})",
            f"[in Binder](https://mybinder.org/v2/gh/{self.name}/main?urlpath=lab/tree/{path})",
            f"[in Codespaces](https://codespaces.new/{self.name})",
        ]
        if path.startswith("notebooks/"):
            places.append(f"[on the site]({self.site}/{path.removesuffix('.ipynb')}.html)")
            return f"You can also open this chapter {', '.join(places[:-1])}, or {places[-1]}."
        return f"You can also open these exercises {', '.join(places[:-1])}, or {places[-1]}."


def opening(path: str, addresses: Addresses | None) -> list[NotebookNode]:
    """The two cells of the notebook that lies at ``path`` in the repository; none without an address."""
    if addresses is None:
        return []
    folder, _, name = path.partition("/")
    if folder == "solutions":  # of which exercises are made: learners open those
        path = f"exercises/{exercise_name(name.removesuffix('.ipynb'))}"
    install = INSTALL.format(clone=CLONE, repository=addresses.repository)
    return [
        new_markdown_cell(addresses.links(path), id=LINKS),
        new_code_cell(install, id=COLAB, metadata={"jupyter": {"source_hidden": True}, "tags": TAGS}),
    ]


def with_opening(notebook: NotebookNode, path: str, addresses: Addresses | None) -> NotebookNode:
    """Put the cells behind the notebook's title, in place of those that are there; all else stays as it is."""
    counts = {cell.get("id"): cell.get("execution_count") for cell in notebook.cells}
    cells = opening(path, addresses)
    for cell in cells[1:]:
        cell.execution_count = counts.get(COLAB)
    others = [cell for cell in notebook.cells if cell.get("id") not in (LINKS, COLAB)]
    return NotebookNode({**notebook, "cells": [*others[:1], *cells, *others[1:]]})


def with_address(readme: str, addresses: Addresses | None) -> str:
    """The README with the repository's address in ``git clone``, and the paragraph on browsers below Install."""
    where, paragraph = "… && cd …", ""
    if addresses:
        where = f"{addresses.repository} && cd {addresses.name.split('/')[1]}"
        paragraph = IN_A_BROWSER.format(site=addresses.site)
    readme = re.sub(r"^git clone .*", f"git clone {where}", readme, count=1, flags=re.MULTILINE)
    found = re.compile(r"^(In a browser alone: .*\n\n)?(?=## What else)", re.MULTILINE)
    return found.sub(lambda _: paragraph, readme, count=1)


@click.command()
@click.option("--root", type=click.Path(path_type=Path), default=Path("."), help="the course's folder")
def main(root: Path) -> None:
    """Write where else the course can be opened into its notebooks, its exercises and its README."""
    try:
        addresses = Addresses.of(root)
        for path in notebooks_in(tuple(root / folder for folder in FOLDERS)):
            name = path.relative_to(root).as_posix()
            write_notebook(with_opening(read_notebook(path), name, addresses), path)
            if path.parent.name == "solutions":
                build(path, root / "exercises")
    except ValueError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None
    readme = root / "README.md"
    readme.write_text(with_address(readme.read_text(encoding="utf-8"), addresses), encoding="utf-8")
    click.echo(f"The links lead to {addresses.repository}." if addresses else NO_LINKS)


if __name__ == "__main__":
    main()
