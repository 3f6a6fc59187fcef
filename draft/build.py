"""Write the notebooks of chapter 13 from the drafts beside this file. To be deleted with them when the chapter lands.

    .venv/bin/python draft/build.py

A draft is a text of cells, as in Jupytext: ``# %% [markdown]`` begins a text, ``# %%`` code; behind it stand the
cell's tags, such as ``setup``, ``nbval-check-output``, ``hide`` (its output is folded).
"""

import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def cells(text, prefix):
    for number, part in enumerate(re.split(r"^# %%", text, flags=re.MULTILINE)[1:]):
        head, _, source = part.partition("\n")
        source = source.strip("\n")
        words = head.split()
        if "[markdown]" in words:
            cell = nbformat.v4.new_markdown_cell(source)
        else:
            cell = nbformat.v4.new_code_cell(source)
            tags = [word for word in words if word in ("setup", "nbval-check-output", "nbval-ignore-output")]
            folds = {}
            if "hide" in words:
                folds["outputs_hidden"] = True
            if "setup" in words:
                folds["source_hidden"] = True
            if tags:
                cell.metadata["tags"] = tags
            if folds:
                cell.metadata["jupyter"] = folds
        cell.id = f"{prefix}-{number:02d}"
        yield cell


for draft, target, prefix in (
    ("chapter.txt", "notebooks/13_galaxy.ipynb", "c13"),
    ("exercises.txt", "solutions/13_galaxy.ipynb", "13-solution"),
):
    path = Path(__file__).parent / draft
    if path.exists():
        notebook = nbformat.v4.new_notebook(cells=list(cells(path.read_text(), prefix)), metadata=METADATA)
        nbformat.validate(notebook)
        nbformat.write(notebook, ROOT / target)
        print(target, len(notebook.cells), "cells")
