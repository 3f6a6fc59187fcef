"""Is the text of every picture large enough, inside, and free? Measured in the browser, at the size it is shown."""

from __future__ import annotations

import base64
import functools
from dataclasses import dataclass
from pathlib import Path

from notebook_page import PANEL, pictures_loaded
from playwright.sync_api import Page

LEAST = 11  # px
MEASURE = (Path(__file__).parent / "measure_text.js").read_text(encoding="utf-8")
SVG = "data:image/svg+xml;base64,"

# Every picture in the notebook in front: in which cell, how large it is shown, whether it reaches over the edge.
PICTURES = """selector => [...document.querySelectorAll(`${selector} .jp-Cell`)].flatMap((cell, index) =>
  [...cell.querySelectorAll(".jp-OutputArea-output img")].map(image => {
    const box = image.getBoundingClientRect();
    const area = image.closest(".jp-OutputArea-output").getBoundingClientRect();
    return {cell: index, alt: image.alt, source: image.src, width: box.width, height: box.height,
            over: box.right - area.right};
  }))"""


# The words of listings that begin on one line and end on another.
BROKEN = """selector => [...document.querySelectorAll(`${selector} figure pre`)].flatMap(listing => {
  const texts = document.createTreeWalker(listing, NodeFilter.SHOW_TEXT), range = document.createRange(), found = [];
  while (texts.nextNode())
    for (const word of texts.currentNode.data.matchAll(/\\S+/g)) {
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const boxes = [...range.getClientRects()].filter(box => box.width);
      if (new Set(boxes.map(box => Math.round(box.top))).size > 1) found.push(word[0]);
    }
  return found; })"""


@dataclass(frozen=True)
class Problem:
    """``kind``: small, cut, overlap, covered, wide (wider than the notebook) or blind (no SVG: not measurable)."""

    cell: int
    picture: str
    kind: str
    text: str
    detail: str


def summary(problems: list[Problem], texts: int = 4) -> list[str]:
    """The problems, one line for each picture, kind and detail, with the first few texts that have it."""
    groups: dict[tuple[int, str, str, str], dict[str, None]] = {}
    for each in problems:
        key = (each.cell, each.picture, each.kind, each.detail)
        groups.setdefault(key, {}).setdefault(f'"{each.text}"')
    lines, last = [], None
    for (cell, picture, kind, detail), which in groups.items():
        if (cell, picture) != last:
            lines.append(f"cell {cell}: {picture if len(picture) <= 90 else f'{picture[:89]}…'}")
            last = cell, picture
        shown = ", ".join(list(which)[:texts]) + (
            f" and {len(which) - texts} more" if len(which) > texts else ""
        )
        lines.append(f"  {kind}, {detail}: {shown}")
    return lines


@functools.cache  # most pictures are as large in a wide window as in a narrow one
def text_problems(
    blank: Page, svg: str, width: float, height: float, least: float = LEAST
) -> list[tuple[str, str, str]]:
    """``(kind, text, detail)`` of what is wrong in an SVG drawn ``width`` by ``height`` px on an empty page."""
    size, now = {"width": round(width) + 1, "height": round(height) + 1}, blank.viewport_size or {}
    if any(
        now.get(side, 0) < least for side, least in size.items()
    ):  # the browser finds nothing off the screen
        blank.set_viewport_size({side: max(now.get(side, 0), least) for side, least in size.items()})
    style = f"svg {{ display: block; width: {width}px; height: {height}px }}"
    page = f"<style>body {{ margin: 0 }} {style}</style>{svg}"
    found = blank.evaluate(MEASURE, [page, least])
    return [(each["kind"], each["text"], each["detail"]) for each in found]


def broken_words(page: Page) -> list[str]:
    """The words of listings in the notebook in front that are broken over two lines."""
    return page.evaluate(BROKEN, PANEL)


def picture_problems(page: Page, blank: Page, least: float = LEAST) -> tuple[list[int], list[Problem]]:
    """Measure all pictures of the notebook in front, each on an empty page: the cell of each, and what is wrong."""
    pictures_loaded(page)
    found = [picture for picture in page.evaluate(PICTURES, PANEL) if picture["width"]]
    problems = []
    for picture in found:
        name = picture["alt"] or "without a description"
        if picture["over"] > 1:
            detail = f"{picture['over']:.0f} px outside the notebook"
            problems.append(Problem(picture["cell"], name, "wide", "", detail))
        if not picture["source"].startswith(SVG):
            problems.append(Problem(picture["cell"], name, "blind", "", "not an SVG: measure it by eye"))
            continue
        svg = base64.b64decode(picture["source"].removeprefix(SVG)).decode()
        for kind, text, detail in text_problems(blank, svg, picture["width"], picture["height"], least):
            problems.append(Problem(picture["cell"], name, kind, text, detail))
    return [picture["cell"] for picture in found], problems
