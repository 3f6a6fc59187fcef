"""Ranks that stay, in JupyterLab in a real browser: progress below the cell, Stop, and a restart of the kernel."""

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from notebook_page import PANEL, open_page, wait_for_kernel

from course_lib.notebooks.build import METADATA

pytestmark = pytest.mark.timeout(600)  # many a wait inside is shorter, and says what did not come
CELLS = (
    "%load_ext course_lib",
    "%%ranks 2\nkept = rank\nkept",
    "%%ranks\nimport time\nif rank == 1:\n    time.sleep(600)\ndist.barrier()",
)


@pytest.fixture
def cells(page, lab):
    """The code cells of a notebook in front, whose kernel is ready."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in CELLS], metadata=METADATA)
    nbformat.write(notebook, lab.root / "notebooks" / "96_ranks.ipynb")
    open_page(page, lab, "notebooks/96_ranks.ipynb")
    wait_for_kernel(page)
    return page.locator(f"{PANEL} .jp-CodeCell")


def start(page, cell):
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")


def finished(page, cell):
    page.wait_for_function(
        "cell => /\\[\\d+\\]/.test(cell.querySelector('.jp-InputPrompt').textContent)",
        arg=cell.element_handle(),
    )


def run(page, cell):
    start(page, cell)
    finished(page, cell)


def kernel_family():
    """The processes below the one kernel that runs."""
    below = psutil.Process().children(recursive=True)
    (kernel,) = [p for p in below if "ipykernel_launcher" in " ".join(p.cmdline())]
    return kernel.children(recursive=True)


def test_stop_and_restart_leave_no_rank(page, cells):
    run(page, cells.nth(0))
    run(page, cells.nth(1))
    assert cells.nth(1).locator(".jp-OutputArea-output").inner_text().splitlines() == [
        "[rank 0] 0",
        "[rank 1] 1",
    ]
    start(page, cells.nth(2))
    progress = page.locator(".ranks-progress")
    progress.filter(has_text="rank 0: in barrier()").filter(
        has_text="rank 1: at Cell In[3], line 4"
    ).wait_for()
    ranks = kernel_family()
    assert cells.nth(2).locator(".jp-OutputArea-output").count() == 0, "it is no output"
    page.locator(f"{PANEL} [data-command='notebook:interrupt-kernel']").click()
    finished(page, cells.nth(2))
    progress.wait_for(state="detached")
    (line,) = [
        text for text in cells.nth(2).locator(".jp-OutputArea").inner_text().splitlines() if text.strip()
    ]
    assert line.startswith("stopped after ")
    assert line.endswith("all 2 ranks were ended, and their variables are gone")
    run(page, cells.nth(1))
    ranks += kernel_family()
    assert len(ranks) >= 6, "twice two ranks, fork server, resource tracker"
    page.evaluate(
        "() => { jupyterapp.commands.execute('kernelmenu:restart'); }"
    )  # it ends after the question
    page.locator(".jp-Dialog button", has_text="Restart").click()
    assert psutil.wait_procs(ranks, timeout=60)[1] == []
