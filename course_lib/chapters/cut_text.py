"""Chapter 25's pictures: a text in boxes, one a token, a character's bytes below each other; and a piece's two rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple
from unicodedata import east_asian_width

from course_lib.text.extend import spell
from simulator.plots.picture import COLUMN, Picture

FONT, HIGH, GAP, LINE = 13, 20, 2, 8  # px
FILLS = {"": "#d3e4f3", "bytes": "#f3b27c", "added": "#a5d3b4", "unknown": "#dcdcdc"}
BYTES = re.compile(r"(?:<(?:0x)?([0-9A-F]{2})>)+")


class Box(NamedTuple):
    """A token: what stands in it, its kind (one of ``FILLS``), and the bytes that it spells."""

    text: str
    kind: str
    spells: bytes = b""


def draw_pieces(cuts: Mapping[str, Sequence[str | Sequence[str]]]) -> Picture:
    """For each tokenizer its name with the number of tokens, and a box for each.

    Args:
        cuts: name -> what ``pieces`` returns, or ``with_words``, where the pieces of an added word are a list.

    Raises:
        ValueError: there is no tokenizer.
    """
    if not cuts:
        raise ValueError("give at least one tokenizer with its pieces")
    parts, said, y = [], [], 0
    for name, cut in cuts.items():
        boxes = [_box(each) for each in cut]
        kinds = [box.kind for box in boxes]
        of_them = "".join(
            f", {kinds.count(kind)} of them {kind}" for kind in list(FILLS)[1:] if kind in kinds
        )
        title = f"{name}: {len(boxes)} tokens{of_them}"
        said.append(f"{title}: {' | '.join(box.text for box in boxes)}")
        parts.append(_text(0, y + 16, title, 'style="font-weight: bold"'))
        y = _rows(parts, _columns(boxes), y + 24) + LINE
    return _picture(parts, y, f"{'. '.join(said)}.")


def draw_rows(rows: Mapping[str, int], numbers: int, piece: str) -> Picture:
    """The embedding and the output matrix, to scale from top to bottom: one piece has a row in each.

    Args:
        rows: whose pieces -> how many; the first are there, the others would come.
        numbers: in a row.
        piece: the one that is marked.

    Raises:
        ValueError: there are no rows.
    """
    every = sum(rows.values())
    if not every:
        raise ValueError("give at least one row")
    high, wide, top = 180, 250, 46
    parts = []
    for x, title in ((0, "embedding, to read"), (320, "output matrix, to write")):
        parts.append(_text(x, 16, title, 'style="font-weight: bold"'))
        parts.append(_text(x, 36, f"↔ {numbers:,} numbers", ""))
        y = float(top)
        for (whose, count), fill in zip(
            rows.items(), (FILLS[""], *[FILLS["unknown"]] * len(rows)), strict=False
        ):
            deep = high * count / every
            parts.append(f'<rect x="{x}" y="{y:.1f}" width="{wide}" height="{deep - 1:.1f}" fill="{fill}"/>')
            parts.append(_text(x + 8, y + deep / 2 + 5, f"{count:,} rows, {whose}", ""))
            y += deep
        marked = top + 0.85 * high
        parts.append(f'<rect x="{x}" y="{marked}" width="{wide}" height="3" fill="#23614a"/>')
        parts.append(_text(x + wide + 6, marked + 6, piece, ""))
    said = ", ".join(f"{count:,} rows of {whose}" for whose, count in rows.items())
    alt = (
        f"Embedding and output matrix, each with {said}, {numbers:,} numbers wide; {piece} has a row in both."
    )
    return _picture(parts, top + high + 4, alt)


def _picture(parts: Sequence[str], high: int, alt: str) -> Picture:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{COLUMN}" height="{high}" viewBox="0 0 {COLUMN} {high}">'
    style = f"<style>text {{ font: {FONT}px 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #1a1a1a }}</style>"
    return Picture(f"{head}{style}{''.join(parts)}</svg>", alt)


def _box(each: str | Sequence[str]) -> Box:
    pieces = [each] if isinstance(each, str) else list(each)
    if len(pieces) > 1:
        return Box(spell(pieces), "added")
    (piece,) = pieces
    if BYTES.fullmatch(piece):
        parts = re.findall("[0-9A-F]{2}(?=>)", piece)
        return Box(" ".join(parts), "bytes", bytes.fromhex("".join(parts)))
    return Box(piece.replace("\n", "⏎"), "unknown" if piece == "[UNK]" else "")


def _columns(boxes: Sequence[Box]) -> list[list[Box]]:
    """Each box alone, but the bytes of one character together."""
    columns: list[list[Box]] = []
    for box in boxes:
        goes_on = box.spells and 0x80 <= box.spells[0] < 0xC0
        if goes_on and columns and columns[-1][0].kind == "bytes":
            columns[-1].append(box)
        else:
            columns.append([box])
    return columns


def _rows(parts: list[str], columns: Sequence[Sequence[Box]], y: int) -> int:
    """Draws the columns from left to right, in as many rows as they need; returns where the last row ends."""
    x, deepest = 0.0, 1
    for column in columns:
        width = max(max(_width(box.text) for box in column) + 8, 18)
        if x and x + width > COLUMN:
            x, y, deepest = 0.0, y + deepest * (HIGH + GAP) + LINE, 1
        for place, box in enumerate(column):
            top, middle = y + place * (HIGH + GAP), x + width / 2
            parts.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{HIGH}" rx="3" fill="{FILLS[box.kind]}"/>'
            )
            parts.append(_text(middle, top + 15, box.text, 'text-anchor="middle"'))
        deepest = max(deepest, len(column))
        if character := b"".join(box.spells for box in column).decode(errors="ignore"):
            parts.append(
                _text(x + width / 2, y + len(column) * (HIGH + GAP) + 14, character, 'text-anchor="middle"')
            )
            deepest = max(deepest, len(column) + 1)
        x += width + GAP
    return y + deepest * (HIGH + GAP)


def _width(text: str) -> float:
    """In px, of a font whose letters are all as wide; a Chinese character takes its whole height."""
    return sum(FONT * (1.0 if east_asian_width(one) in "WF" else 0.61) for one in text)


def _text(x: float, y: float, text: str, more: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'
