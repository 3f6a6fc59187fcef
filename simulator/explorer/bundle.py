"""The page's files as one script and one style sheet, and as one HTML file that needs nothing else.

There is no build step. The scripts are ES modules of a few hundred lines. Here they are put one behind the other, each
behind those that it imports, without their imports and exports.
"""

from __future__ import annotations

import json
import re
from functools import cache
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path
from typing import Any

from simulator.inputs.placement import SCHEDULES
from simulator.plots.style import CATEGORIES
from simulator.plots.timeline import COLOURS

PAGE = Path(__file__).with_name("page")
IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
FUNCTION = re.compile(r"^export (?:async )?function (\w+)", re.MULTILINE)
CONSTANTS = re.compile(r"^export const (.*)$", re.MULTILINE)  # one or several, each with a value
PAINTED = {"forward": "forward", "backward": "backward", "weights": "weight gradients"}  # in CSS: in COLOURS
LAST = ("", "-last")  # the colours of the first chunk and of the last
HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
html {{ color-scheme: light dark; }}
body {{ margin: 0; padding: 12px 16px; background: #ffffff; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #1b1b1d; }} }}
{style}h1 {{ position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }}
</style>
</head>
<body data-headings="2">
<noscript>This page draws with JavaScript, which is switched off here.</noscript>
<main><h1>{title}</h1></main>
{script}</body>
</html>
"""


START = """<script type="module">
{script}
start(document.querySelector("{place}"), {given});
</script>
"""


@cache
def script(main: str = "main") -> str:
    """All modules that ``main`` needs, in one script, each in a scope of its own; ``main``'s exports are its names."""
    parts: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    todo = [main]
    while todo:
        name = todo.pop()
        if name not in parts:
            text = _source(name)
            needs[name] = [other for _, other in IMPORT.findall(text)]
            parts[name] = _in_its_scope(name, text)
            todo += needs[name]
    order = [parts[name] for name in TopologicalSorter(needs).static_order()]
    return "\n".join(["const modules = {};", *order, f"const {_exported(parts[main])} = modules.{main};"])


def _source(name: str) -> str:
    """A file of a folder ``page`` of the simulator, or the table of schedules, which is Python's own."""
    if name == "forms":
        return f"export const FORMS = {_json({name: form._asdict() for name, form in SCHEDULES.items()})};"
    return next(PAGE.parents[1].glob(f"*/page/{name}.js")).read_text(encoding="utf-8")


def _in_its_scope(name: str, text: str) -> str:
    constants = [found for line in CONSTANTS.findall(text) for found in re.findall(r"(?:^|, )(\w+) = ", line)]
    exported = ", ".join(constants + FUNCTION.findall(text))
    body = IMPORT.sub(r"const \1 = modules.\2;", text)
    body = re.sub(r"^export ", "", body, flags=re.MULTILINE)
    return f"modules.{name} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"


def _exported(part: str) -> str:
    return part.rsplit("return ", 1)[1].split(";", 1)[0]


@cache
def style() -> str:
    """The style sheet, with the colours of the still pictures."""
    colours = {
        f"{name}{last}": COLOURS[kind][k] for name, kind in PAINTED.items() for k, last in enumerate(LAST)
    }
    variables = "".join(f"--{name}: {colour}; " for name, colour in (colours | CATEGORIES).items())
    return f".explorer {{ {variables}}}\n" + (PAGE / "style.css").read_text(encoding="utf-8")


def widget_script(main: str = "main") -> str:
    """The script as anywidget loads it: an ES module that exports ``render``."""
    return script(main) + "\nexport default { render };\n"


def standalone(main: str, given: dict[str, Any], title: str) -> str:
    """One HTML file that draws in the browser, without Python and without a network.

    Args:
        main: the module whose ``start`` is called, with the page's ``<main>`` and ``given``.
    """
    started = START.format(script=script(main), place="main", given=_json(given))
    return HTML.format(title=escape(title), style=style(), script=started)


def fragment(main: str, given: dict[str, Any]) -> str:
    """The same as a part of a page that has a title of its own: then both scroll together."""
    place = f"explorer-{main}"
    started = START.format(script=script(main), place=f"#{place}", given=_json(given))
    return f'<style>\n{style()}</style>\n<div id="{place}"></div>\n' + started.replace(
        "\nstart(", "\ndocument.body.dataset.headings ??= 2;\nstart("
    )


def _json(value: Any) -> str:
    """What may stand inside of a script."""
    return json.dumps(value).replace("<", "\\u003c")
