"""Execute notebooks in place, so that running them again changes nothing but what they compute.

``make notebooks`` runs it on ``notebooks/`` and ``solutions/``. Timings, widget state and the exact Python
version are not stored: a notebook executed twice differs only where its outputs do.

What a learner sees folded is decided here, too, and not by hand: the source of cells tagged ``setup`` (imports,
helpers, code that only arranges data) and of those that reveal the answer to a bet, and in a chapter every output
from its first bet on, so that no result is seen before its cell is run. JupyterLab opens a folded output
when the cell runs. Until then it shows one line of the first output, which would be the answer, or raw markup: so
an empty output comes first.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_output
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from course_lib.notebooks.build import METADATA, read_notebook, write_notebook

CELL_TIMEOUT = 120  # seconds
SETUP = "setup"  # the tag of cells whose source is folded
INTERACTIVE = "interactive"  # the tag of cells whose output is megabytes of script: it is not stored
BET = re.compile(r"\b(predict|bet)\(")
REVEAL = re.compile(r"^reveal\(", re.MULTILINE)  # its arguments are the answer and the way to it
UNTOLD = "# Run this cell to see the answer."  # of a folded source JupyterLab shows the first line
NOTEBOOK_TARGET = 60  # seconds a notebook may take on two cores; more is said, not refused


def notebooks_in(paths: tuple[Path, ...]) -> Iterator[Path]:
    """The notebooks named, and those in the folders named, in reading order.

    Raises:
        ValueError: for a path that is neither.
    """
    for path in paths:
        if path.is_dir():
            yield from sorted(path.glob("[0-9][0-9]_*.ipynb"))
        elif path.suffix == ".ipynb" and path.exists():
            yield path
        else:
            raise ValueError(f"{path} is neither a notebook nor a folder of notebooks")


def tidy(notebook: NotebookNode) -> NotebookNode:
    """Drop what differs between two runs of the same notebook and says nothing to its reader."""
    course = notebook.metadata.get("course")
    notebook.metadata.clear()
    notebook.metadata.update(METADATA | ({"course": course} if course else {}))
    for cell in notebook.cells:
        for key in ("execution", "ExecuteTime", "collapsed", "scrolled", "jupyter"):
            cell.metadata.pop(key, None)
        if INTERACTIVE in cell.metadata.get("tags", ()):
            cell.outputs = []
        for output in cell.get("outputs", []):
            if "data" in output:  # a view of a widget whose state is not stored shows nothing but an error
                output.data.pop("application/vnd.jupyter.widget-view+json", None)
    return notebook


def fold(notebook: NotebookNode) -> NotebookNode:
    """Fold setup and reveals, and every output from the first bet on; what is folded tells nothing.

    The empty output in front has no data of any type: JupyterLab finds no line in it, and nbval nothing to compare.
    """
    predicted = False
    for cell in notebook.cells:
        if cell.cell_type == "code":
            folds = {}
            predicted |= BET.search(cell.source) is not None
            if REVEAL.search(cell.source) and not cell.source.startswith(UNTOLD):
                cell.source = f"{UNTOLD}\n{cell.source}"
            if SETUP in cell.metadata.get("tags", ()) or cell.source.startswith(UNTOLD):
                folds["source_hidden"] = True
            if predicted and cell.outputs:
                folds["outputs_hidden"] = True
                if cell.outputs[0].get("data") != {}:
                    cell.outputs.insert(0, new_output("display_data"))
            if folds:
                cell.metadata["jupyter"] = folds
    return notebook


def execute(
    path: Path, on_cell: Callable[[int, int], None] | None = None, cell_timeout: float = CELL_TIMEOUT
) -> NotebookNode:
    """Execute one notebook in its own folder and write it back, unless a cell fails.

    Args:
        path: the notebook.
        on_cell: called with (cell index, number of cells) before each cell, if given.
        cell_timeout: seconds for one cell.

    Raises:
        RuntimeError: a cell raised, took too long, or its kernel died; the notebook on disk is as it was.
    """
    notebook = read_notebook(path)
    current = 0

    def begin(cell: NotebookNode, cell_index: int) -> None:
        nonlocal current
        current = cell_index
        if on_cell is not None:
            on_cell(cell_index, len(notebook.cells))

    client = NotebookClient(
        notebook,
        timeout=cell_timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,
        on_cell_start=begin,
    )
    try:
        # What is written is for everybody: without the points of whoever runs this.
        client.execute(env={**os.environ, "PYTHONHASHSEED": "0", "COURSE_POINTS": "none"})
    except CellExecutionError as error:
        raise RuntimeError(
            f"{path}, cell {current}: {error.ename}: {error.evalue}\n{error.traceback}"
        ) from None
    except CellTimeoutError:
        raise RuntimeError(f"{path}, cell {current} took longer than {cell_timeout:g} s") from None
    except DeadKernelError:
        raise RuntimeError(f"{path}, cell {current}: the kernel died") from None
    write_notebook(fold(tidy(notebook)), path)
    return notebook


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--cell-timeout", default=CELL_TIMEOUT, show_default=True, help="seconds for one cell")
def main(paths: tuple[Path, ...], cell_timeout: float) -> None:
    """Execute the notebooks named, and those in the folders named, in place."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        try:
            for path in notebooks_in(paths):
                task = progress.add_task(str(path))
                started = time.monotonic()
                execute(
                    path,
                    lambda done, total, t=task: progress.update(t, completed=done, total=total),
                    cell_timeout,
                )
                seconds = time.monotonic() - started
                progress.remove_task(task)
                late = f"  (longer than {NOTEBOOK_TARGET} s)" if seconds > NOTEBOOK_TARGET else ""
                progress.console.print(f"{path}  {seconds:.0f} s{late}", highlight=False)
        except RuntimeError as error:
            progress.console.print(str(error), markup=False, highlight=False, soft_wrap=True)
            raise SystemExit(1) from None
        except ValueError as error:
            progress.console.print(str(error), markup=False, highlight=False, soft_wrap=True)
            raise SystemExit(2) from None


if __name__ == "__main__":
    main()
