"""Write the page: ``python site/play``. Pyodide is fetched from npm once, and kept under build/npm."""

from __future__ import annotations

import argparse
import shutil
import sys
from html import escape
from pathlib import Path

from npm import npm_package

from play.browser.plans import OWN
from play.browser.traces import NONE
from play.cells import CHAPTERS, Cell, Chapter, chapter
from play.files import ROOT, modules_for, pack
from play.prose import heading, sentences
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS

PAGE = Path(__file__).with_name("page")
PYODIDE = "314.0.7"
PYODIDE_FILES = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "pyodide-lock.json",
    "python_stdlib.zip",
    "README.md",
    "package.json",
)


def build(out: Path, pyodide: Path | None = None) -> None:
    """Write the page's folder, which any server of static files can serve.

    Args:
        out: the folder; what it held before is deleted.
        pyodide: the unpacked npm package, where it is there already; None: fetched with npm, or kept from before.

    Raises:
        RuntimeError: Pyodide is not there, and npm cannot fetch it.
    """
    pyodide = pyodide or npm_package("pyodide", PYODIDE)
    chapters = [chapter(number) for number in CHAPTERS]
    shutil.rmtree(out, ignore_errors=True)
    (out / "pyodide").mkdir(parents=True)
    for name in PYODIDE_FILES:
        shutil.copy(pyodide / name, out / "pyodide")
    pack(modules_for([module for part in chapters for module in part.modules]), out / "course.zip")
    for path in sorted(PAGE.glob("*.[jc]s*")):
        shutil.copy(path, out)
    (out / "index.html").write_text(_html(chapters, out), encoding="utf-8")
    (out / "plans.html").write_text(_form("plans.html", [*MODELS, OWN], "llama-3-8b", out), encoding="utf-8")
    traces = _form("traces.html", [*MODELS, OWN, NONE], NONE, out)
    (out / "traces.html").write_text(traces, encoding="utf-8")


def _home(out: Path) -> str:
    return '<a href="../index.html">The course</a>' if (out.parent / "index.html").exists() else ""


def _form(name: str, models: list[str], first: str, out: Path) -> str:
    """A page that asks for a model and a device."""
    options = {
        part: "".join(f"<option{' selected' * (one == chosen)}>{escape(one)}</option>" for one in known)
        for part, known, chosen in (("MODELS", models, first), ("GPUS", GPUS, "h100"))
    }
    return _filled(name, {"HOME": _home(out), **options})


def _filled(name: str, parts: dict[str, str]) -> str:
    page = (PAGE / name).read_text(encoding="utf-8")
    for part, html in parts.items():
        page = page.replace(f"<!-- {part} -->", html)
    return page


def _html(chapters: list[Chapter], out: Path) -> str:
    parts = "".join(_chapter_html(part, out) for part in chapters)
    links = "".join(f'<a href="#chapter-{c.number}">Chapter {escape(c.number)}</a>' for c in chapters)
    return _filled("index.html", {"HOME": _home(out), "LINKS": links, "CHAPTERS": parts})


def _chapter_html(part: Chapter, out: Path) -> str:
    whole = f"notebooks/{part.name}.html"
    link = f' <a href="../{whole}">Read the whole chapter.</a>' if (out.parent / whole).exists() else ""
    cells = "".join(_cell_html(part, k, cell) for k, cell in enumerate(part.cells))
    return f"""
<section class="chapter" id="chapter-{part.number}" data-chapter="{part.number}" aria-labelledby="title-{part.number}">
<h2 id="title-{part.number}">{escape(part.title)}</h2>
<p>These are the {len(part.cells)} cells of the chapter that need only the simulator.{link}</p>
<p class="buttons"><button type="button" class="run-all">Run all cells of this chapter</button>
<button type="button" class="reset-all">Reset all cells</button></p>
{cells}</section>
"""


def _cell_html(part: Chapter, number: int, cell: Cell) -> str:
    name = f"Cell {number + 1} of chapter {part.number}"
    title = f"<h3>{escape(heading(cell.above))}</h3>" if heading(cell.above) else ""
    words = sentences(cell.above, cell.gap) if cell.above else ""
    if number == 0:
        words = "<p>Run this cell first. It imports what the other cells of the chapter use.</p>"
    rows = cell.source.count("\n") + 1
    return f"""{title}<div class="words">{words}</div>
<div class="cell" data-cell="{escape(cell.id)}" role="group" aria-label="{name}">
<div class="edit"><pre class="painted" aria-hidden="true"></pre>
<textarea aria-label="{name}, Python" aria-describedby="keys" rows="{rows}" spellcheck="false" autocapitalize="off"
 autocomplete="off" wrap="off">
{escape(cell.source)}</textarea></div>
<p class="buttons"><button type="button" class="run">Run</button>
<button type="button" class="reset" disabled>Reset</button> <span class="state" role="status"></span></p>
<div class="output" role="region" aria-label="Output of cell {number + 1}" tabindex="-1" hidden></div>
</div>
"""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python site/play", description=__doc__)
    place = ROOT / "build" / "site" / "play"
    parser.add_argument("--out", type=Path, default=place, help="where the page is written: build/site/play")
    parser.add_argument(
        "--pyodide", type=Path, help="an unpacked npm package of Pyodide, instead of fetching one"
    )
    given = parser.parse_args()
    if given.pyodide and not (given.pyodide / "pyodide.asm.wasm").is_file():
        parser.error(f"--pyodide {given.pyodide} is not an unpacked npm package of Pyodide")
    out = given.out.resolve()
    if out.exists() and not (out / "course.zip").exists() and any(out.iterdir()):
        parser.error(
            f"--out {given.out} holds other files, and building would delete them: name another folder"
        )
    try:
        build(out, given.pyodide)
    except RuntimeError as error:
        sys.exit(str(error))
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"The page is in {out}, {size / 1e6:.1f} MB.")
    print(f"To look at it: python -m http.server --directory {out}, then open http://localhost:8000")
