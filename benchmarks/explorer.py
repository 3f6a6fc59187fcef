"""From a slider to pixels: how long the explorer takes for 16 x 64 and for 64 x 512, as a page and in JupyterLab.

python benchmarks/explorer.py [--rounds 9]

A slider's event is sent in a headless Chromium. The clock stops when the canvas has been drawn, and its pixels have
been read back, so that nothing is left to be drawn later. In JupyterLab a second clock stops when Python has confirmed
what is drawn. The wall-clock time is that of a busy machine, too: run it on an idle one.

Prints the median and the least for each schedule. It judges nothing, and needs a Chromium. Takes about a minute on
two idle cores.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import click
import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from paired import rounds
from playwright.sync_api import Browser, Page

from course_lib.notebooks.build import METADATA
from simulator.explorer import explore

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from notebook_page import command, open_page, wait_for_kernel
from server import chromium, course_copy, jupyterlab

CASES = (("1f1b", 16, 64), ("zb-h1", 16, 64), ("zb-v", 16, 64), ("zb-h1", 64, 512), ("dualpipe-v", 64, 512))
IN_JUPYTERLAB = CASES[:3]
NOTEBOOK = "notebooks/96_explorer.ipynb"
# -> [ms until the pixels are there, ms until Python has confirmed them; null where there is no Python]
MOVE = """python => new Promise(done => {
  const slider = document.querySelector(".control.forward input[type=range]");
  const drawing = document.querySelector(".drawing"), canvases = [...document.querySelectorAll("canvas")];
  const begin = performance.now(), now = () => performance.now() - begin;
  drawing.addEventListener("drawn", () => {
    for (const canvas of canvases) canvas.getContext("2d").getImageData(60, 10, 1, 1);
    const pixels = now();
    if (!python) return done([pixels, null]);
    const confirmed = () => JSON.parse(drawing.dataset.confirmed ?? "{}").forward === Number(slider.value);
    const look = () => (confirmed() ? done([pixels, now()]) : setTimeout(look));
    look();
  }, { once: true });
  slider.value = Number(slider.value) >= 2 ? 1 : Number(slider.value) + 0.1;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
})"""


def as_page(browser: Browser) -> Iterator[tuple[str, int, int, Page]]:
    """The standalone file of each case, opened."""
    with tempfile.TemporaryDirectory() as folder:
        for schedule, ranks, microbatches in CASES:
            path = Path(folder) / "explorer.html"
            explore(schedule, ranks, microbatches, transfer=0.1).save(path)
            with new_page(browser) as page:
                page.goto(path.as_uri())
                yield schedule, ranks, microbatches, page


def in_jupyterlab(browser: Browser) -> Iterator[tuple[str, int, int, Page]]:
    """The live view of each case in a notebook."""
    with course_copy() as root, jupyterlab(root, commands=True) as lab:
        for schedule, ranks, microbatches in IN_JUPYTERLAB:
            call = f"explore('{schedule}', {ranks}, {microbatches}, transfer=0.1)"
            cell = new_code_cell(f"from simulator.explorer import explore\n{call}")
            nbformat.write(new_notebook(cells=[cell], metadata=METADATA), root / NOTEBOOK)
            with new_page(browser) as page:
                open_page(page, lab, NOTEBOOK)
                wait_for_kernel(page)
                command(page, "notebook:run-all-cells")
                page.locator(".drawing[data-confirmed]").wait_for()
                yield schedule, ranks, microbatches, page
            lab.end_kernels()


@contextmanager
def new_page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1100, "height": 1000})
    yield page
    page.close()


def said(times: list[float]) -> str:
    return f"{median(times):.0f} ({min(times):.0f})"


@click.command(help=__doc__)
@rounds(9)
def main(rounds: int) -> None:
    with ExitStack() as stack:
        try:
            browser = stack.enter_context(chromium())
        except FileNotFoundError as error:
            print(error, file=sys.stderr)
            sys.exit(2)
        print("slider to pixels and to Python's answer, ms: median (least)")
        print(f"{'where':10} {'schedule':10}  ranks x microbatches  actions   pixels       confirmed")
        for where, opened in (("page", as_page), ("JupyterLab", in_jupyterlab)):
            for schedule, ranks, microbatches, page in opened(browser):
                page.locator(".explorer[data-shown]").wait_for()
                moved = [page.evaluate(MOVE, where != "page") for _ in range(rounds)]
                pixels, confirmed = zip(*moved, strict=True)
                actions = len(explore(schedule, ranks, microbatches).execution().schedule)
                size = f"{ranks} x {microbatches}"
                python = said(confirmed) if where != "page" else ""
                print(f"{where:10} {schedule:10} {size:>21}  {actions:7}   {said(pixels):12} {python}")


if __name__ == "__main__":
    main()
