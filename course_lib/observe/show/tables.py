"""What a chapter prints: the library's own source, and the tables of its Compare section.

Everything here shows itself in a notebook as HTML, with the same content as plain text for a terminal, a
screen reader, or a diff.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from course_lib.observe.show.shown import Shown


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> Shown:
    """A table whose first column names the rows; columns of figures are aligned to the right.

    Args:
        header: one title per column.
        rows: cells of any type; ``None`` leaves a cell empty, whole numbers are grouped by thousands.

    Raises:
        ValueError: a row has not as many cells as there are columns.
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"the row {list(row)!r} has {len(row)} cells, the table {len(header)} columns")
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    sides = ["left", *("right" if _is_figures(column[1:]) else "left" for column in columns[1:])]
    lines = [
        "  ".join(
            f"{cell:{'<' if side == 'left' else '>'}{width}}"
            for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in cells
    ]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    text = "\n".join([*([title] if title else []), lines[0], rule, *lines[1:]])

    head = "".join(
        f'<th scope="col" style="text-align:{side}">{escape(name)}</th>'
        for name, side in zip(header, sides, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row" style="text-align:left; font-weight:normal">{escape(name)}</th>'
        + "".join(
            f'<td style="text-align:{side}">{escape(c)}</td>'
            for c, side in zip(values, sides[1:], strict=True)
        )
        + "</tr>"
        for name, *values in cells[1:]
    )
    caption = f'<caption style="text-align:left">{escape(title)}</caption>' if title else ""
    return Shown(text, f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")


def _is_figures(cells: Sequence[str]) -> bool:
    """Whether a column holds amounts rather than words: short, and with a digit in each (or "none")."""
    return all(c == "none" or (len(c) <= 14 and any(map(str.isdigit, c))) for c in cells if c)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
