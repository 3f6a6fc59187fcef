"""Look at a notebook as its reader will: photographs of every page, and what is wrong with the text in its pictures.

``python tests/browser/look.py notebooks/05_ddp.ipynb --out /tmp/look`` opens it in JupyterLab in a headless Chromium,
in a window of 1,100 px, and writes one PNG a page: first as it opens, folded, and then with everything unfolded.
``--width 1400``, ``--dark`` and ``--run`` change that; without ``--out`` it only measures. The notebook is looked at in
a copy: nothing is saved.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
from notebook_page import (
    PANEL,
    all_cells_shown,
    command,
    open_page,
    pictures_loaded,
    run_all,
    told_in_place,
    unfold,
    use_theme,
)
from pictures import picture_problems, summary
from playwright.sync_api import Page
from server import ROOT, chromium, course_copy, jupyterlab

HEIGHT = 900
SCROLLER = f"{PANEL} .jp-WindowedPanel-outer"


def photograph(page: Page, folder: Path, name: str) -> list[Path]:
    """A PNG of the window for every page of the notebook in front, scrolled by a little less than a page."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{name}-[0-9][0-9].png"):
        old.unlink()
    height, visible = page.evaluate(
        "s => (e => [e.scrollHeight, e.clientHeight])(document.querySelector(s))", SCROLLER
    )
    made, top = [], 0
    while True:
        page.evaluate("([s, top]) => { document.querySelector(s).scrollTop = top }", [SCROLLER, top])
        pictures_loaded(page)
        made.append(folder / f"{name}-{len(made) + 1:02d}.png")
        page.screenshot(path=made[-1])
        top += visible - 60
        if top + 60 >= height:
            return made


@click.command()
@click.argument(
    "notebooks", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="The folder for the photographs."
)
@click.option("--width", default=1100, show_default=True, help="The window's width in px.")
@click.option("--dark", is_flag=True, help="JupyterLab's dark theme.")
@click.option("--run", is_flag=True, help="Run all cells first.")
@click.option("--folded", is_flag=True, help="Look at nothing that the notebook has folded.")
def main(
    notebooks: tuple[Path, ...], out: Path | None, width: int, dark: bool, run: bool, folded: bool
) -> None:
    """Photograph notebooks page by page, and measure the text of their pictures.

    The exit code is 1 when something in a picture is too small, cut, covered or overlapping, and when a folded output
    tells what it is.
    """
    wrong = 0
    with course_copy() as root, jupyterlab(root, commands=True) as lab, chromium() as browser:
        page, blank = browser.new_page(viewport={"width": width, "height": HEIGHT}), browser.new_page()
        for notebook in notebooks:
            path = notebook.resolve().relative_to(ROOT).as_posix()
            open_page(page, lab, path)
            all_cells_shown(page)
            use_theme(page, dark)
            if run:
                run_all(page)
            name = f"{notebook.stem}-{width}-{'dark' if dark else 'light'}"
            told = told_in_place(page)
            click.echo(f"{path}: {len(told)} folded outputs tell what they are")
            for line in told:
                click.echo(f"  {line[:100]}")
            wrong += len(told)
            if out:
                made = photograph(page, out, f"{name}-folded")
                click.echo(f"  {len(made)} pages: {made[0]} …")
            if folded:
                command(page, "application:close-all")
                continue
            unfold(page)
            cells, problems = picture_problems(page, blank)
            click.echo(f"{path}: {len(cells)} pictures at {width} px, {len(problems)} problems")
            for line in summary(problems):
                click.echo(f"  {line}")
            if out:
                made = photograph(page, out, name)
                click.echo(f"  {len(made)} pages: {made[0]} …")
            wrong += len(problems)
            command(page, "application:close-all")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
