"""The folder that Sphinx reads: notebooks, exercises and docs as they lie in the course, and the site's own pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

from linked_map import linked_map
from moving_timeline import executions, moving_timeline
from notebook_as_page import as_page, linked_sources
from play.cells import CHAPTERS as PLAYED
from reference import listing, overview, source_file, topic_page, topics

from simulator.explorer import explore, explore_memory

ROOT = Path(__file__).parents[1]
# What the pages of the two tools show first, where their address asks for nothing else.
VIEWS = {
    "explorer": explore("zb-h1", ranks=4, microbatches=8, transfer=0.2),
    "memory": explore_memory("llama-3-70b", "h100", dp=8, tp=8, zero=1),
}
PAGES = Path(__file__).with_name("pages")
RUNS_HERE = (
    'The cells that need only the simulator <a href="../play/index.html#chapter-{}">run in your browser</a>, '
    "with nothing installed."
)


def gather(into: Path) -> None:
    """Bring a folder up to date. A file that stays as it is is not touched, so that Sphinx need not read it again."""
    pages = {path.relative_to(PAGES).as_posix(): _text(path) for path in PAGES.glob("*.md")}
    pages |= {path.relative_to(ROOT).as_posix(): _text(path) for path in ROOT.glob("docs/*")}
    notebooks, linked = _notebooks()
    reference, documented = _reference()
    pages |= notebooks | reference
    for file in linked | documented:
        pages |= {file: _text(ROOT / file), file.replace(".py", ".md"): listing(file)}
    for name in [name for name in pages if name.startswith("docs/") and name.endswith(".md")]:
        pages[name] = known_links(pages[name], set(pages))
    readme = _text(ROOT / "README.md")
    pages["parts/chapters.md"] = chapters(readme)
    pages["parts/bet.html"] = first_bet(_text(ROOT / "notebooks" / "00_start_here.ipynb"))
    pages["parts/install.md"] = installation(readme)
    pages["parts/moving_timeline.html"] = moving_timeline(executions())
    pages["parts/map.html"] = linked_map()
    pages |= {f"parts/{name}.html": view.fragment() for name, view in VIEWS.items()}
    for path in into.rglob("*"):
        if path.is_file() and path.relative_to(into).as_posix() not in pages:
            path.unlink()
    for name, text in pages.items():
        path = into / name
        if not path.exists() or _text(path) != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def _notebooks() -> tuple[dict[str, str], set[str]]:
    """Chapters and exercises, and the files of source that they link to."""
    pages, sources = {}, set()
    for path in sorted(ROOT.glob("notebooks/*.ipynb")) + sorted(ROOT.glob("exercises/*.ipynb")):
        notebook = json.loads(_text(path))
        sources |= set(linked_sources(notebook))
        name = path.relative_to(ROOT)
        runs = path.stem[:2] in PLAYED and name.parts[0] == "notebooks"
        pages[name.as_posix()] = json.dumps(as_page(notebook, RUNS_HERE.format(path.stem[:2]) * runs))
    return pages, sources


def _reference() -> tuple[dict[str, str], set[str]]:
    """The pages of the reference, and the files that hold what they document."""
    found = topics()
    pages = {f"reference/{topic['file']}.md": topic_page(topic) for topic in found}
    pages["reference/index.md"] = overview(found)
    return pages, {source_file(name.rpartition(".")[0]) for topic in found for name in topic["names"]}


def section(markdown: str, title: str) -> str:
    """What stands under a heading of the second level.

    Raises:
        ValueError: there is no such heading.
    """
    _, *rest = re.split(r"^## (.+)\n", markdown, flags=re.MULTILINE)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    if title not in sections:
        raise ValueError(f"README.md has no section {title!r}: its sections are {', '.join(sections)}")
    return sections[title]


def known_links(markdown: str, pages: set[str]) -> str:
    """A page of ``docs/``, where a file that the site does not show is only named."""

    def link(found: re.Match[str]) -> str:
        return found[0] if found[2] in pages else found[1]

    return re.sub(r"\[([^\]]+)\]\(\.\./([^)#]+)\)", link, markdown)


def chapters(readme: str) -> str:
    """The table of chapters; that of the lanes, which stands above it in the README, is the site's map."""
    return "| number" + section(readme, "The chapters").partition("| number")[2]


def first_bet(notebook: str) -> str:
    """A chapter's first question and its answer, for the first page; ``game.js`` plays them."""
    cells = json.loads(notebook)["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    shown = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    asked, answer = (next(html for html in shown if kind in html) for kind in ("data-ask=", "data-answer="))
    return f'<div class="cell_output">{asked}{answer}</div>\n'


def installation(readme: str) -> str:
    """The one command, and the other ways to install the course; what is said of the site is not said on the site."""
    command = re.search(r"^```\n.*?^```\n", readme, re.MULTILINE | re.DOTALL)[0]
    return command + re.sub(r" [^.]+\[on the site\]\([^)]+\)\.", "", section(readme, "Install"))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
