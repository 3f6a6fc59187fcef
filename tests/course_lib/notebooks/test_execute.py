"""Notebooks executed in place: the same bytes twice, and the old notebook when a cell fails."""

import subprocess
import sys

import nbformat
import pytest
from click.testing import CliRunner
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_lib.notebooks.build import read_notebook, write_notebook
from course_lib.notebooks.execute import UNTOLD, execute, fold, main, notebooks_in, tidy


def test_executing_twice_changes_nothing(tmp_path):
    path = tmp_path / "97_try.ipynb"
    cell = new_code_cell(
        "print('a')\nprint('b')\n1 + 1", metadata={"execution": {"iopub.status.busy": "now"}}
    )
    nbformat.write(
        new_notebook(
            cells=[cell], metadata={"widgets": {}, "language_info": {"name": "python", "version": "3"}}
        ),
        path,
    )
    seen = []
    execute(path, on_cell=lambda index, count: seen.append((index, count)))
    first = path.read_bytes()
    notebook = nbformat.reads(first.decode(), as_version=4)
    assert [output.output_type for output in notebook.cells[0].outputs] == ["stream", "execute_result"]
    assert notebook.cells[0].metadata == {}
    assert notebook.metadata.language_info == {"name": "python"}
    assert "widgets" not in notebook.metadata
    assert seen == [(0, 1)]
    execute(path)
    assert path.read_bytes() == first


def test_a_failing_cell_is_named_and_the_notebook_kept(tmp_path):
    path = tmp_path / "97_try.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("x = 1"), new_code_cell("x / 0")]), path)
    before = path.read_bytes()
    result = CliRunner().invoke(main, [str(path)])
    assert result.exit_code == 1
    assert "cell 1: ZeroDivisionError: division by zero" in result.output
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_paths_are_notebooks_or_folders(tmp_path):
    for name in ("02_b.ipynb", "01_a.ipynb", "notes.ipynb"):
        (tmp_path / name).touch()
    assert [path.name for path in notebooks_in((tmp_path,))] == ["01_a.ipynb", "02_b.ipynb"]
    with pytest.raises(ValueError, match="neither a notebook nor a folder"):
        list(notebooks_in((tmp_path / "none",)))


def test_imports_and_results_are_folded(tmp_path):
    path = tmp_path / "97_try.ipynb"
    cells = [
        new_code_cell("import math", metadata={"tags": ["setup"]}),
        new_code_cell("print('the problem')"),
        new_markdown_cell("A guess."),
        new_code_cell("predict = print\npredict('a number')"),
        new_code_cell("print('arranged')", metadata={"tags": ["setup"]}),
        new_code_cell("reveal = print\nreveal(8)"),
        new_code_cell("x = 1", metadata={"jupyter": {"outputs_hidden": True}}),
    ]
    nbformat.write(new_notebook(cells=cells), path)
    notebook = execute(path)
    assert [cell.metadata.get("jupyter") for cell in notebook.cells if cell.cell_type == "code"] == [
        {"source_hidden": True},
        None,
        {"outputs_hidden": True},
        {"source_hidden": True, "outputs_hidden": True},
        {"source_hidden": True, "outputs_hidden": True},
        None,
    ]
    revealed = notebook.cells[5]
    assert revealed.source == f"{UNTOLD}\nreveal = print\nreveal(8)"
    assert [output.get("data", output.get("text")) for output in revealed.outputs] == [{}, "8\n"]
    before = path.read_bytes()
    write_notebook(fold(tidy(read_notebook(path))), path)
    assert path.read_bytes() == before


def test_nbval_compares_what_is_behind_the_empty_output(tmp_path):
    path = tmp_path / "97_try.ipynb"
    cells = [new_code_cell("bet = print\nbet('a result')"), new_code_cell("40 + 2")]
    nbformat.write(new_notebook(cells=cells), path)
    execute(path)
    nbval = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", path]
    assert subprocess.run(nbval, cwd=tmp_path).returncode == 0
    path.write_text(path.read_text().replace('"42"', '"41"'))
    assert subprocess.run(nbval, cwd=tmp_path).returncode == 1
