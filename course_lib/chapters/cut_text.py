"""Chapter 25's pictures: a text in boxes, one a token, its words in English, and the rows of old and new pieces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple
from unicodedata import east_asian_width

from course_lib.text.extend import spell
from simulator.plots.picture import COLUMN, Picture

FONT, SMALL, HIGH, GAP, LINE = 13, 11.5, 20, 2, 8  # px
FILLS = {
    "": "#d3e4f3",
    "bytes": "#f3b27c",
    "added": "#a5d3b4",
    "unknown": "#dcdcdc",
    "uncut": "#ffffff",
}
COUNTED = ("bytes", "added", "unknown")  # kinds that a title counts
BYTES = re.compile(r"(?:<(?:0x)?([0-9A-F]{2})>)+")


class Box(NamedTuple):
    """A token: what stands in it, its kind (one of ``FILLS``), and the bytes that it spells."""

    text: str
    kind: str
    spells: bytes = b""

    @property
    def whole(self) -> bytes:
        return self.spells or self.text.encode()


def draw_pieces(
    cuts: Mapping[str, Sequence[str | Sequence[str]]], means: Mapping[str, str] | None = None
) -> Picture:
    """For each tokenizer its name with the number of tokens, and a box for each.

    Args:
        cuts: name -> what ``pieces`` returns, or ``with_words``, where the pieces of an added word are a list.
        means: a word -> what stands below its boxes, if they hold exactly this word.

    Raises:
        ValueError: there is no tokenizer.
    """
    if not cuts:
        raise ValueError("give at least one tokenizer with its pieces")
    texts = {}
    for name, cut in cuts.items():
        boxes = [_box(each) for each in cut]
        kinds = [box.kind for box in boxes]
        of_them = "".join(f", {kinds.count(kind)} of them {kind}" for kind in COUNTED if kind in kinds)
        texts[f"{name}: {len(boxes)} tokens{of_them}"] = boxes
    return _texts(texts, means or {})


def draw_text(title: str, text: str, means: Mapping[str, str]) -> Picture:
    """A text that nobody has cut: its characters, and its words in English."""
    return _texts({title: [Box(one, "uncut") for one in text]}, means)


def draw_two_rows(pieces: Sequence[str], word: str, numbers: str, layers: str) -> Picture:
    """Two rows for each piece: the model reads the first piece by one of them, and guesses the next by the others.

    Args:
        pieces: of the vocabulary; the first one is read.
        word: an added one, whose two rows are new.
        numbers: what stands in a row: ``"4,096 numbers"``.
        layers: what stands between the two matrices.

    Raises:
        ValueError: there is no piece.
    """
    if not pieces:
        raise ValueError("give at least one piece")
    label, row, high, apart = 62, 170, 26, 46  # px
    middle = label + GAP + row + apart
    right = middle + COLUMN - 2 * middle + apart
    bold = 'style="font-weight: bold"'
    centred = 'text-anchor="middle"'
    deep = (len(pieces) + 1) * (high + 4) - 4
    parts = [
        _text(0, 14, "embedding: to read it", bold),
        _text(right, 14, "output matrix: to guess it", bold),
        _rect(middle, 24, COLUMN - 2 * middle, deep, FILLS["unknown"]),
        _text(COLUMN / 2, 24 + deep / 2 + 4, layers, centred),
    ]
    for place, piece in enumerate([*pieces, word]):
        y = 24 + place * (high + 4)
        kind = "added" if piece == word else "bytes" if re.fullmatch("[0-9A-F]{2}", piece) else ""
        for at_label, at_row in ((0, label + GAP), (COLUMN - label, right)):
            parts.append(_rect(at_label, y, label, high, FILLS[kind]))
            parts.append(_text(at_label + label / 2, y + 18, piece, centred))
            parts.append(_rect(at_row, y, row, high, FILLS["added" if piece == word else ""]))
            parts.append(_text(at_row + row / 2, y + 18, "new" if piece == word else numbers, centred))
        if place == 0:
            parts.append(_text(middle - apart / 2, y + 18, "─▶", centred))
        parts.append(_text(right - apart / 2, y + 18, "─▶", centred))
    said = f"The row of {pieces[0]} in the embedding goes into the {layers}, and what comes out to every row of the "
    return _picture(parts, 24 + deep + 4, f"{said}output matrix. New in both: the rows of {word}.")


def draw_added(data: str, layers: str, words: Sequence[str], before: str, after: str) -> Picture:
    """A model that was trained on ``data``, and below it the same model with rows for new words in both matrices.

    Args:
        layers: what stands between the two matrices.
        before: how well the model guesses, in one line or two; ``after``: the same with the new rows.

    Raises:
        ValueError: there is no word.
    """
    if not words:
        raise ValueError("give at least one word")
    at = {"embedding": 172, layers: 290, "output matrix": 384}
    wide = {"embedding": 92, layers: 68, "output matrix": 116}
    green, high = 15, 34  # px
    parts, y = [], 6.0
    for title, said, added in (
        ("trained on", before, []),
        (f"{len(words)} words added", after, list(words)),
    ):
        parts.append(_text(0, y + 15, title, 'style="font-weight: bold"'))
        if not added:
            parts.append(_text(0, y + 31, data, ""))
        for name, left in at.items():
            deep = high + (len(added) * (green + GAP) + GAP if added and name == layers else 0)
            parts.append(_rect(left, y, wide[name], deep, FILLS["unknown" if name == layers else ""]))
            parts.append(_text(left + wide[name] / 2, y + deep / 2 + 5, name, 'text-anchor="middle"'))
            for place, word in enumerate(added if name != layers else []):
                top = y + high + GAP + place * (green + GAP)
                parts.append(_rect(left, top, wide[name], green, FILLS["added"]))
                parts.append(
                    _text(left + wide[name] / 2, top + 12, word, 'class="small" text-anchor="middle"')
                )
            parts.append(_text(left - 13, y + 21, "▶", 'text-anchor="middle"'))
        parts.append(_text(504, y + 21, "▶", ""))
        parts += [_text(519, y + 15 + 16 * line, each, "") for line, each in enumerate(said.split("\n"))]
        y += high + (len(added) * (green + GAP) + GAP if added else 0) + 16
    told = f"A model trained on {data}: {before}. With rows for {', '.join(words)} in both matrices: {after}.".replace(
        "\n", " "
    )
    return _picture(parts, round(y - 8), told)


def draw_rows(starts: Mapping[str, Mapping[str, Sequence[float]]]) -> Picture:
    """For each way to begin, the rows of the new words as strips of numbers: above 0 orange, below 0 blue.

    Args:
        starts: its name -> a word -> the numbers of its row. The strips of all starts share one scale.

    Raises:
        ValueError: there is no number.
    """
    largest = max((abs(n) for rows in starts.values() for row in rows.values() for n in row), default=0)
    if not largest:
        raise ValueError("give at least one start whose rows are not all 0")
    label, high, half = 54, 16, COLUMN / 2
    parts, said, y = [], [], 0.0
    for number, (name, rows) in enumerate(starts.items()):
        left = half * (number % 2)
        parts.append(_text(left, y + 14, name, 'style="font-weight: bold"'))
        for place, (word, row) in enumerate(rows.items()):
            top, wide = y + 22 + place * (high + GAP), (half - label - 20) / len(row)
            parts.append(_text(left, top + 13, word, ""))
            for column, n in enumerate(row):
                parts.append(_rect(left + label + column * wide, top, wide - 1, high, _tint(n / largest)))
        different = len({tuple(round(n / largest, 6) for n in row) for row in rows.values()})
        said.append(f"{name}: {different} different of {len(rows)}")
        if number % 2 or number == len(starts) - 1:
            y += 22 + max(map(len, starts.values())) * (high + GAP) + 12
    return _picture(parts, round(y - 8), f"Rows of new words. {'; '.join(said)}.")


def _tint(size: float) -> str:
    """From white to orange at 1, and to blue at -1; small numbers are shown darker than they are, to be seen at all."""
    full = (204, 106, 36) if size > 0 else (27, 100, 170)
    strength = min(1.0, abs(size)) ** 0.5
    return "#" + "".join(f"{round(255 + strength * (part - 255)):02x}" for part in full)


def _texts(texts: Mapping[str, Sequence[Box]], means: Mapping[str, str]) -> Picture:
    parts: list[str] = []
    said, y = [], 0
    for title, boxes in texts.items():
        said.append(f"{title}: {' | '.join(box.text for box in boxes)}")
        parts.append(_text(0, y + 16, title, 'style="font-weight: bold"'))
        y = _lines(parts, _words(_columns(boxes), means), y + 24) + LINE
    return _picture(parts, y, f"{'. '.join(said)}.")


def _picture(parts: Sequence[str], high: int, alt: str) -> Picture:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{COLUMN}" height="{high}" viewBox="0 0 {COLUMN} {high}">'
    chinese = "'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', 'WenQuanYi Micro Hei'"  # of four systems
    fonts = f"'DejaVu Sans Mono', Menlo, Consolas, {chinese}, monospace"
    small = f"text.small {{ font-size: {SMALL}px; fill: #555555 }}"
    style = f"<style>text {{ font: {FONT}px {fonts}; fill: #1a1a1a }} {small}</style>"
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


def _words(columns: Sequence[list[Box]], means: Mapping[str, str]) -> list[tuple[str, list[list[Box]]]]:
    """Columns that make a word stand together behind its English; the longest word is taken."""
    known = {word.encode(): english for word, english in means.items()}
    words, at = [], 0
    while at < len(columns):
        spelled = {
            end: b"".join(box.whole for column in columns[at:end] for box in column)
            for end in range(len(columns), at, -1)
        }
        end = next((end for end, text in spelled.items() if text in known), at + 1)
        words.append((known.get(spelled[end], ""), list(columns[at:end])))
        at = end
    return words


def _lines(parts: list[str], words: Sequence[tuple[str, list[list[Box]]]], y: int) -> int:
    """Draws the words from left to right, in as many lines as they need; returns where the last line ends."""
    lines: list[list[tuple[float, float, str, list[list[Box]]]]] = [[]]
    x = 0.0
    for english, columns in words:
        boxes = sum(_column_width(column) + GAP for column in columns)
        wide = max(boxes, 0.61 * SMALL * len(english) + 8 if english else 0)
        if x and x + wide - GAP > COLUMN:
            x = 0.0
            lines.append([])
        lines[-1].append((x, wide, english, columns))
        x += wide
    for line in lines:
        deep = max(_deep(column) for *_, columns in line for column in columns)
        for left, wide, english, columns in line:
            x = left + (wide - sum(_column_width(column) + GAP for column in columns)) / 2
            for column in columns:
                _column(parts, column, x, y)
                x += _column_width(column) + GAP
            if english:
                below = y + deep * (HIGH + GAP) + 12
                parts.append(
                    _text(left + (wide - GAP) / 2, below, english, 'class="small" text-anchor="middle"')
                )
        y += deep * (HIGH + GAP) + (18 if any(english for *_, english, _ in line) else 0) + LINE
    return y - LINE


def _column(parts: list[str], column: Sequence[Box], x: float, y: float) -> None:
    width = _column_width(column)
    for place, box in enumerate(column):
        top = y + place * (HIGH + GAP)
        parts.append(_rect(x, top, width, HIGH, FILLS[box.kind]))
        parts.append(_text(x + width / 2, top + 15, box.text, 'text-anchor="middle"'))
    if character := _character(column):
        below = y + len(column) * (HIGH + GAP) + 14
        parts.append(_text(x + width / 2, below, character, 'text-anchor="middle"'))


def _character(column: Sequence[Box]) -> str:
    return b"".join(box.spells for box in column).decode(errors="ignore")


def _deep(column: Sequence[Box]) -> int:
    return len(column) + bool(_character(column))


def _column_width(column: Sequence[Box]) -> float:
    return max(max(_width(box.text) for box in column) + 8, 18)


def _width(text: str) -> float:
    """In px, of a font whose letters are all as wide; a Chinese character takes its whole height."""
    return sum(FONT * (1.0 if east_asian_width(one) in "WF" else 0.61) for one in text)


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" fill="{fill}"/>'


def _text(x: float, y: float, text: str, more: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>' if text else ""
