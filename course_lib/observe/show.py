"""What a chapter prints: the library's own source, and the tables of its Compare section.

Everything here shows itself in a notebook as HTML, with the same content as plain text for a terminal, a
screen reader, or a diff.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

# Every colour of this style reads on white with a contrast of at least 4.5 : 1 (a test measures it).
_STYLE = "xcode"


class Shown:
    """Something with two faces: HTML in a notebook, plain text everywhere else."""

    def __init__(self, text: str, html: str) -> None:
        self.text, self.html = text, html

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.text, "text/html": self.html}


def show_source(*objects: Any, docstrings: bool = True) -> Shown:
    """The source of functions, classes, methods or properties, as it stands in the library.

    Args:
        objects: what to show, one under the other, each under its dotted name.
        docstrings: ``False`` leaves them out, when the chapter's text has already said it.

    Raises:
        ValueError: nothing is given, or it has no Python source (a number, a function written in C).
    """
    if not objects:
        raise ValueError("show_source needs at least one function, class or method")
    pieces = [(_title(o), _source(o) if docstrings else without_docstrings(_source(o))) for o in objects]
    text = "\n\n".join(f"# {title}\n{source}" for title, source in pieces)
    # Colours of ink and paper both, on every element: a dark theme would change only one of them.
    html = "".join(
        '<figure style="margin:0 0 1em 0; padding:.6em 1em; background:#ffffff; border:1px solid #8a8a8a">'
        f'<figcaption style="color:#595959; font-size:85%">{escape(title)}</figcaption>'
        '<pre style="margin:0; background:#ffffff; color:#000000; overflow-x:auto; font-family:monospace">'
        f"{_highlighted(source)}</pre></figure>"
        for title, source in pieces
    )
    return Shown(text, html)


def _highlighted(source: str) -> str:
    html = highlight(source, PythonLexer(), HtmlFormatter(noclasses=True, nowrap=True, style=_STYLE))
    return re.sub(r'<span style="color: #000">(.*?)</span>', r"\1", html).strip("\n")


def _unwrapped(obj: Any) -> Any:
    return inspect.unwrap(obj.fget if isinstance(obj, property) and obj.fget else obj)


def _title(obj: Any) -> str:
    obj = _unwrapped(obj)
    module, name = (
        getattr(obj, "__module__", None),
        getattr(obj, "__qualname__", getattr(obj, "__name__", "")),
    )
    return name if module in (None, "__main__") else f"{module}.{name}"


def _source(obj: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(_unwrapped(obj))).strip("\n")
    except (TypeError, OSError):
        raise ValueError(
            f"{obj!r} has no Python source to show; give a function, a class or a method written in Python"
        ) from None


def without_docstrings(source: str) -> str:
    """``source`` without the docstrings of its functions and classes; comments and layout stay.

    >>> without_docstrings('def f():\\n    "Docs."\\n    return 1')
    'def f():\\n    return 1'
    """
    lines: list[str | None] = list(source.split("\n"))
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        if not documented or ast.get_docstring(node, clean=False) is None:
            continue
        docstring = node.body[0]
        first, last = docstring.lineno - 1, docstring.end_lineno
        if len(node.body) == 1:  # nothing else inside: it still needs a body
            lines[first] = " " * docstring.col_offset + "..."
            first += 1
        elif last < len(lines) and not (lines[last] or "").strip():
            last += 1  # the empty line that set the docstring off
        lines[first:last] = [None] * (last - first)
    return "\n".join(line for line in lines if line is not None)


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
    """Whether a column holds amounts rather than words: short, and with a digit in each."""
    return all(len(c) <= 14 and any(map(str.isdigit, c)) for c in cells if c)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# unit -> its multiples, largest first; sizes are decimal, as vendors and papers count them
_PREFIXES = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")]
_SCALES: dict[str, list[tuple[float, str]]] = {
    "B": [(factor, prefix + "B") for factor, prefix in _PREFIXES],
    "B/s": [(factor, prefix + "B/s") for factor, prefix in _PREFIXES],
    "FLOP": [(factor, prefix + "FLOP") for factor, prefix in _PREFIXES],
    "FLOP/s": [(factor, prefix + "FLOP/s") for factor, prefix in _PREFIXES],
    "s": [(3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")],
    "%": [(0.01, "%")],
    "": [(1, "")],
}


def scale_of(value: float, unit: str) -> tuple[float, str]:
    """The multiple of ``unit`` in which ``value`` reads best, and its name.

    >>> scale_of(67.1e6, "B")
    (1000000.0, 'MB')
    """
    if unit not in _SCALES:
        raise ValueError(f"unit {unit!r} is not known; known are {', '.join(map(repr, _SCALES))}")
    scales = _SCALES[unit]
    return next(((f, name) for f, name in scales if abs(value) >= f), scales[-1] if value else (1, unit))


def amount(value: float, unit: str = "") -> str:
    """A number with its unit, to three or four digits.

    >>> amount(67_108_864, "B"), amount(0.00125, "s"), amount(11_689_512), amount(0.25, "%")
    ('67.1 MB', '1.25 ms', '11,689,512', '25 %')
    """
    factor, name = scale_of(value, unit)
    return f"{_digits([value / factor])[0]} {name}".strip()


def _digits(values: Sequence[float | None]) -> list[str | None]:
    """Numbers that stand side by side, all with as many decimals as the largest of them needs."""
    known = [value for value in values if value is not None]
    largest = max(map(abs, known), default=0)
    whole = all(float(value).is_integer() for value in known)
    decimals = 0 if whole else 1 if largest >= 10 else 2 if largest >= 1 else 3
    return [None if value is None else f"{value:,.{decimals}f}" for value in values]


@dataclass(frozen=True)
class Row:
    """One quantity of a Compare table, in its base unit: bytes, seconds, FLOPs, or a plain number.

    Args:
        name: what it is: ``"sent by each rank"``.
        guess: the learner's number, written before the run.
        predicted: the simulator's.
        measured: what our implementation did.
        official: what the official implementation did in the same run.
        unit: ``"B"``, ``"B/s"``, ``"s"``, ``"FLOP"``, ``"FLOP/s"``, ``"%"`` (of a fraction) or ``""``.
    """

    name: str
    guess: float | None = None
    predicted: float | None = None
    measured: float | None = None
    official: float | None = None
    unit: str = ""

    def cells(self, columns: Sequence[str]) -> list[str | None]:
        """The row's name with its unit, then the values of ``columns``, all in that multiple of the unit."""
        known = [v for v in (self.measured, self.predicted, self.official, self.guess) if v is not None]
        factor, unit = scale_of(known[0] if known else 0, self.unit)
        values = [getattr(self, column) for column in columns]
        name = f"{self.name} ({unit})" if unit else self.name
        return [name, *_digits([None if value is None else value / factor for value in values])]


def compare(*rows: Row, official: str = "official", title: str = "") -> Shown:
    """The Compare section's table: the guess, the prediction, the measurement, the official implementation.

    A column appears when a row has something to put in it. The last column divides the measurement by the
    prediction (by the official value, where nothing is predicted): ``exactly 1`` means equal to the last bit.

    Args:
        official: the official implementation's name, such as ``"torch DDP"``.

    Raises:
        ValueError: no row, or a unit that is not known.
    """
    if not rows:
        raise ValueError("compare needs at least one Row")
    every = ("guess", "predicted", "measured", "official")
    columns = [column for column in every if any(getattr(row, column) is not None for row in rows)]
    against = "predicted" if "predicted" in columns else "official"
    with_ratio = "measured" in columns and against in columns
    names = {"guess": "your guess", "predicted": "predicted", "measured": "measured", "official": official}
    header = ["", *(names[c] for c in columns), *([f"measured / {names[against]}"] if with_ratio else [])]
    body = [
        [*row.cells(columns), *([_ratio(row.measured, getattr(row, against))] if with_ratio else [])]
        for row in rows
    ]
    return table(header, body, title)


def _ratio(value: float | None, reference: float | None) -> str | None:
    if value is None or reference is None:
        return None
    if value == reference:
        return "exactly 1"
    return f"{value / reference:.3f}" if reference else None
