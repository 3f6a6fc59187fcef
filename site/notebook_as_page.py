"""A notebook as a page of the site: nothing is executed, and what is folded in JupyterLab is folded here."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from html import escape
from typing import Any

from course_lib.notebooks.opening import LINKS
from simulator.explorer import explore, explore_memory

Notebook = dict[str, Any]
# The course's own source, as an output links to it: ``show_source`` writes such links.
SOURCE = re.compile(r'href="\.\./((?:course_lib|simulator)/[\w/]+)\.py"')
# A notebook that an output links to: those of the map, and the next one.
CHAPTER = re.compile(r'href="((?:\.\./exercises/)?\d\d_\w+)\.ipynb"')
# What a notebook says of the site is not said on the site.
ON_THE_SITE = re.compile(r", (\[[^]]+\]\([^)]+\)), or \[on the site\]\([^)]+\)")
# The still picture of an explorer, behind which a live view follows that only a kernel shows.
STILL = 'class="explorer-still"'
# What the cell calls -> the site's page of it, and what makes the view. A network's tree folds as it stands.
PAGES = {"explore": ("explorer", explore), "explore_memory": ("memory", explore_memory)}
LIVE = '<p>Here is a still picture. The <a href="../{}.html#{}">live view{}</a> is a page of its own.</p>'
# What ``predict``, ``bet`` and ``reveal`` leave for the page's script, ``game.js``.
GAME = re.compile(r"data-(ask|answer)=")
# Folded in JupyterLab -> the tag by which myst-nb folds.
TAGS = {"source_hidden": "hide-input", "outputs_hidden": "hide-output"}


def as_page(notebook: Notebook, runs_here: str = "") -> Notebook:
    """A copy that the site shows: folded cells get myst-nb's tags, links to source lead to the pages that show it.

    Args:
        notebook: as it lies in the course.
        runs_here: a sentence for the cell that says where else the notebook can be opened. That cell is missing
            while the course has no address: then the sentence gets one of its own, below the title.
    """
    page = copy.deepcopy(notebook)
    if runs_here and all(cell.get("id") != LINKS for cell in page["cells"]):
        title, _, opening = "".join(page["cells"][0]["source"]).partition("\n")
        said = zip((page["cells"][0]["id"], LINKS, "opening"), (title, "", opening), strict=True)
        page["cells"][:1] = [{"cell_type": "markdown", "id": i, "metadata": {}, "source": s} for i, s in said]
    for cell in page["cells"]:
        if cell.get("id") == LINKS:
            words = ON_THE_SITE.sub(r", or \1", "".join(cell["source"]))
            cell["source"] = f"{words} {runs_here}".strip()
        if cell["cell_type"] != "code":
            continue
        folded = cell["metadata"].get("jupyter", {})
        tags = cell["metadata"].setdefault("tags", [])
        tags += [tag for name, tag in TAGS.items() if folded.get(name) and tag not in tags]
        if GAME.search(str(cell["outputs"])):  # it opens by itself, after a guess: nothing else folds it
            tags[:] = [tag for tag in tags if tag != TAGS["outputs_hidden"]]
        # The empty output in front of a folded one is for JupyterLab.
        cell["outputs"] = [output for output in cell["outputs"] if output.get("data") != {}]
        if STILL in str(cell["outputs"]):
            cell["outputs"] = [_with_link(cell)]
        for output in cell["outputs"]:
            if "text/html" in output.get("data", {}):
                html = "".join(output["data"]["text/html"])
                html = CHAPTER.sub(r'href="\1.html"', html)
                output["data"]["text/html"] = SOURCE.sub(r'href="../\1.html"', html)
    return page


def _with_link(cell: dict[str, Any]) -> dict[str, Any]:
    """The still picture alone, with a link to the site's page, if there is one, of what the cell's last line opens."""
    still = next(output for output in cell["outputs"] if STILL in str(output))
    return still | {
        "data": {"text/html": "".join(still["data"]["text/html"]) + _live("".join(cell["source"]))}
    }


def _live(source: str) -> str:
    """The link to the view that a cell opens. What the cell has to compute first, a measured step, is left out."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    call = next((node for node in calls if getattr(node.func, "id", "") in PAGES), None)
    if call is None:
        return ""
    page, view = PAGES[call.func.id]
    words = {word.arg: word.value for word in call.keywords}
    measured = words.pop("measured", None)
    shown = view(
        *map(ast.literal_eval, call.args), **{name: ast.literal_eval(v) for name, v in words.items()}
    )
    return LIVE.format(page, escape(shown.address()), " without the measured step" if measured else "")


def linked_sources(notebook: Notebook) -> Iterator[str]:
    """The files of source that a notebook's outputs link to: ``course_lib/data_parallel/ddp.py``."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            html = "".join(output.get("data", {}).get("text/html", ""))
            yield from (f"{path}.py" for path in SOURCE.findall(html))
