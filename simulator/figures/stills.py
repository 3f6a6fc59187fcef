"""Draw the still pictures of all figures with node: ``python -m simulator.figures.stills``.

Each figure gets one for its default values, and one for every call in a notebook whose arguments are plain values.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from html import escape
from pathlib import Path

from simulator import figures
from simulator.explorer.bundle import script, style
from simulator.figures.figure import STILLS, Figure

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CALL = re.compile(r"\b(explore_\w+\([^()]*\))")
COLOUR = re.compile(r"--([a-z_]+): (#\w{6})")
DRAW = """
const found = [];
for (const { values, given, step, colours } of questions) {
  const picture = draw(values, step, given);
  found.push([picture.says, modules.marks.svgFrom(picture, colours)]);
}
console.log(JSON.stringify(found));
"""


def every_figure() -> dict[str, Figure]:
    """File of its still picture -> figure."""
    makers = {name: getattr(figures, name) for name in figures.__all__ if name.startswith("explore_")}
    found = [make() for make in makers.values()] + list(_in_notebooks(makers))
    return {figure.still_name: figure for figure in found}


def _in_notebooks(makers: dict) -> Iterator[Figure]:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for text in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
            for call in CALL.findall(text):
                node = ast.parse(call, mode="eval").body
                assert isinstance(node, ast.Call)
                assert isinstance(node.func, ast.Name)
                if node.func.id in makers:
                    words = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
                    yield makers[node.func.id](*map(ast.literal_eval, node.args), **words)


def drawn(figure: Figure) -> str:
    """What the file of its still picture holds."""
    colours = dict(COLOUR.findall(style().split('[data-theme="dark"]')[0]))
    asked = [{"values": figure.values, "given": figure.page()[1], "step": figure.shown, "colours": colours}]
    program = f"{script(figure.script)}\nconst questions = {json.dumps(asked)};\n{DRAW}"
    done = subprocess.run(
        ["node", "--input-type=module", "-"], input=program, stdout=subprocess.PIPE, text=True, check=True
    )
    ((says, svg),) = json.loads(done.stdout)
    return f"<!-- {escape(f'{figure.title}. {says}')} -->\n{svg}"


if __name__ == "__main__":
    wanted = every_figure()
    STILLS.mkdir(exist_ok=True)
    for old in STILLS.glob("*.svg"):
        if old.name not in wanted:
            old.unlink()
    for name, figure in wanted.items():
        (STILLS / name).write_text(drawn(figure), encoding="utf-8")
    print(f"{len(wanted)} still pictures in {STILLS}")
