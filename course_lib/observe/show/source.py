"""The library's own source, as a chapter shows it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from html import escape
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from course_lib.notebooks.places import course_root
from course_lib.observe.show.shown import Shown

# Every colour of this style reads on white with a contrast of at least 4.5 : 1 (a test measures it).
STYLE = "xcode"
# JupyterLab would break a line anywhere; what has no space to break at scrolls.
WRAPPED = "white-space:pre-wrap; word-break:normal; overflow-wrap:normal; overflow-x:auto"


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
    pieces = [
        (_title(o), _link(o), _source(o) if docstrings else without_docstrings(_source(o))) for o in objects
    ]
    text = "\n\n".join(f"# {title}\n{source}" for title, _, source in pieces)
    # Colours of ink and paper both, on every element: a dark theme would change only one of them.
    html = "".join(
        '<figure style="margin:0 0 1em 0; padding:.6em 1em; background:#ffffff; border:1px solid #8a8a8a">'
        f'<figcaption style="color:#595959; font-size:85%">{link.format(escape(title))}</figcaption>'
        f'<pre style="margin:0; background:#ffffff; color:#000000; font-family:monospace; {WRAPPED}">'
        f"{hanging(_highlighted(source))}</pre></figure>"
        for title, link, source in pieces
    )
    return Shown(text, html)


def _highlighted(source: str) -> str:
    html = highlight(source, PythonLexer(), HtmlFormatter(noclasses=True, nowrap=True, style=STYLE))
    return re.sub(r'<span style="color: #000">(.*?)</span>', r"\1", html).strip("\n")


def hanging(html: str) -> str:
    """Lines that wrap at spaces: what does not fit goes on below, four columns further in than its line begins.

    A column is 0.6 em; JupyterLab drops a style in ``ch``. Lines are no blocks: copied, each would end with two breaks.
    """

    def line(found: re.Match[str]) -> str:
        text = re.sub("<[^>]*>", "", found[0])
        width = f"{0.6 * (len(text) - len(text.lstrip(' ')) + 4):.1f}em"
        return f'<span style="display:inline-block; padding-left:{width}; text-indent:-{width}">{found[0]}</span>'

    return re.sub(".+", line, html)


def _unwrapped(obj: Any) -> Any:
    while type(obj).__module__.startswith("triton."):  # a kernel holds its function in ``fn``
        obj = obj.fn
    return inspect.unwrap(obj.fget if isinstance(obj, property) and obj.fget else obj)


def _title(obj: Any) -> str:
    obj = _unwrapped(obj)
    module, name = (
        getattr(obj, "__module__", None),
        getattr(obj, "__qualname__", getattr(obj, "__name__", "")),
    )
    return name if module in (None, "__main__") else f"{module}.{name}"


def _link(obj: Any) -> str:
    """What goes around the title: a link from a notebook to the course's own file, which opens in the editor."""
    try:
        file = Path(inspect.getsourcefile(_unwrapped(obj)) or "").resolve().relative_to(course_root())
    except (TypeError, ValueError):  # another package's
        return "{}"
    if file.parts[0] not in ("course_lib", "simulator"):  # a cell's own function
        return "{}"
    return f'<a href="../{file.as_posix()}" style="color:#1a5276">{{}}</a>'


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
