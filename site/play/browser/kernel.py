"""Runs cells as a notebook does: names are kept from cell to cell, and the last expression is shown.

An error becomes one sentence with the line of the cell that it comes from.
"""

from __future__ import annotations

import ast
import contextlib
import io
import traceback
from collections.abc import Callable
from html import escape
from pprint import pformat
from typing import Any

ABSENT = ("torch", "numpy", "matplotlib", "IPython", "anywidget", "transformers", "pygments")
CELL = "<cell>"


class Chapter:
    """One chapter's names, which its cells share."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, source: str, write: Callable[[str], None]) -> dict[str, str]:
        """Run one cell.

        Args:
            write: gets what the cell prints, as it is printed.

        Returns:
            ``text`` and ``html`` of the last expression's value (empty where it is None), or ``error``, a sentence.
        """
        found = {"text": "", "html": "", "error": ""}
        with contextlib.redirect_stdout(_Stream(write)), contextlib.redirect_stderr(_Stream(write)):
            try:
                value = self._value(source)
                found["text"], found["html"] = shown(value)
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                found["error"] = sentence(error)
        return found

    def _value(self, source: str) -> Any:
        tree = ast.parse(source, CELL)
        last = tree.body[-1] if tree.body else None
        quiet = source.rstrip().endswith(";")
        if isinstance(last, ast.Expr) and not quiet:
            tree.body.pop()
        else:
            last = None
        exec(compile(tree, CELL, "exec"), self.names)
        return None if last is None else eval(compile(ast.Expression(last.value), CELL, "eval"), self.names)


class _Stream(io.TextIOBase):
    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._write(text)
        return len(text)


def shown(value: Any) -> tuple[str, str]:
    """A value as text and as HTML, as a notebook would show it."""
    if value is None:
        return "", ""
    if svg := getattr(value, "svg", ""):  # a Picture: in the page itself it follows the page's theme
        return repr(value), svg
    if callable(iframe := getattr(value, "iframe", None)):  # the explorer, as a page of its own
        return value.still()["text/plain"], iframe()
    if callable(bundle := getattr(value, "_repr_mimebundle_", None)):
        faces = bundle()
        return faces.get("text/plain", ""), faces.get("text/html", "")
    if callable(html := getattr(value, "_repr_html_", None)):
        return repr(value), html()
    text = value if isinstance(value, str) else pformat(value, width=100, compact=True)
    text = repr(value) if isinstance(value, str) else text
    return text, f"<pre>{escape(text)}</pre>"


def sentence(error: BaseException) -> str:
    """What went wrong and in which line of the cell, in one sentence without a traceback."""
    if isinstance(error, SyntaxError):
        return _whole(f"line {error.lineno} is not complete Python: {error.msg}")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == CELL]
    return _whole(f"line {lines[-1]}: {_reason(error)}" if lines else _reason(error))


def _reason(error: BaseException) -> str:
    said = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in ABSENT:
        return f"{error.name} is not on this page, which has only the simulator; a notebook on your machine has it"
    if isinstance(error, NameError) and error.name:
        return (
            f"the name {error.name!r} is not defined: run the cells above this one first, or look for a slip"
        )
    if isinstance(error, SystemExit):
        return "the cell has ended Python with exit(), and nothing is lost"
    if isinstance(error, RecursionError):
        return "a function calls itself without an end"
    if isinstance(error, KeyError):
        return f"there is no entry {said}"
    if isinstance(error, ValueError) and said:
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _whole(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."
