"""The cells of a notebook that need only the simulator, chosen by the names that they use.

A cell is chosen if every name in it is Python's own, imported from a module that runs in a browser, or defined by a
chosen cell above it. So nobody keeps a list, and a new cell of a notebook appears on the page by itself.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from dataclasses import dataclass

import nbformat

from play.files import ROOT, file_of, runs_in_browser

CHAPTERS = ("00", "03", "11")
UNSEEN = "remove-cell"  # the tag of cells that no reader of a page needs


@dataclass(frozen=True)
class Cell:
    """One cell.

    Args:
        id: the notebook's own name for it.
        source: its Python.
        above: the Markdown cell right above it in the notebook; empty where a cell of the page stands there.
        gap: whether a code cell above that Markdown cell is not on the page, so that its first words may be about it.
        shown: what the notebook shows below it, as text.
    """

    id: str
    source: str
    above: str
    gap: bool
    shown: str


@dataclass(frozen=True)
class Chapter:
    """The cells of one chapter, in order; the first one imports what the others use."""

    number: str
    name: str
    title: str
    cells: tuple[Cell, ...]
    modules: tuple[str, ...]


def chapter(number: str) -> Chapter:
    """The part of a chapter that runs in a browser.

    Raises:
        ValueError: there is no such chapter, or no cell of it needs only the simulator.
    """
    paths = sorted((ROOT / "notebooks").glob(f"{number}_*.ipynb"))
    if not paths:
        raise ValueError(f"there is no notebook of a chapter {number!r}")
    notebook = nbformat.read(paths[0], as_version=4)
    imported: dict[str, tuple[str, str]] = {}
    defined = set(dir(builtins))
    chosen, last = [], None
    for at, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or UNSEEN in cell.metadata.get("tags", ()):
            continue
        if (parsed := _parsed(cell.source)) is None:
            continue
        imports = [node for node in parsed.body if isinstance(node, ast.Import | ast.ImportFrom)]
        imported |= {name: alias for node in imports for name, alias in _light(node).items()}
        rest = ast.unparse(ast.Module([node for node in parsed.body if node not in imports], []))
        used, new = _names(rest)
        if imports or not rest or used - defined - set(imported) - new:
            continue
        defined |= new
        chosen.append((at, cell, used & set(imported)))
    if not chosen:
        raise ValueError(f"no cell of chapter {number} needs only the simulator")
    needed = {name: imported[name] for _, _, used in chosen for name in used}
    cells = [Cell(f"imports-{number}", _imports(needed), "", False, "")]
    for at, cell, _ in chosen:
        above = _before(notebook, at, "markdown")
        words = notebook.cells[above].source if above != last else ""
        gap = _before(notebook, above, "code") not in [place for place, *_ in chosen]
        cells.append(Cell(cell.id, cell.source, words, gap, _shown(cell.outputs)))
        last = above
    title = notebook.cells[0].source.splitlines()[0].removeprefix("# ")
    modules = sorted({module for module, _ in needed.values()})
    return Chapter(number, paths[0].stem, title, tuple(cells), tuple(modules))


def _before(notebook: nbformat.NotebookNode, at: int, kind: str) -> int:
    return next((i for i in range(at - 1, -1, -1) if notebook.cells[i].cell_type == kind), -1)


def _parsed(source: str) -> ast.Module | None:
    """Without IPython's magics; None for a cell that is one."""
    lines = source.splitlines()
    if lines and lines[0].startswith("%%"):
        return None
    try:
        return ast.parse("\n".join(line for line in lines if not line.startswith("%")))
    except SyntaxError:
        return None


def _light(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str]]:
    """Name -> (module, how it is imported), for what runs in a browser."""
    found = {}
    for alias in node.names:
        words = alias.name + (f" as {alias.asname}" if alias.asname else "")
        module = node.module if isinstance(node, ast.ImportFrom) else alias.name
        if runs_in_browser(module) and not _draws(module):
            found[alias.asname or alias.name] = (module, words if isinstance(node, ast.ImportFrom) else "")
    return found


def _draws(module: str) -> bool:
    """Whether it draws with matplotlib, and the page has no counterpart (``browser/pictures.py``)."""
    path = file_of(module)
    return path is not None and "from matplotlib" in path.read_text("utf-8")


def _names(source: str) -> tuple[set[str], set[str]]:
    """The names that a cell takes from outside of itself or of its functions, and those that it defines."""
    top = symtable.symtable(source, "cell", "exec")
    used, new, todo = set(), set(), [top]
    while todo:
        table = todo.pop()
        todo += table.get_children()
        for symbol in table.get_symbols():
            if table is top and (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()):
                new.add(symbol.get_name())
            if symbol.is_referenced() and (table is top or symbol.is_global()):
                used.add(symbol.get_name())
    return used, new


def _imports(needed: dict[str, tuple[str, str]]) -> str:
    """The import statements of these names, in the order that the notebook's formatter would give them."""
    by_module: dict[str, list[str]] = {}
    for module, words in needed.values():
        by_module.setdefault(module, []).append(words)
    lines = []
    ours = {module: file_of(module) is not None for module in by_module}
    for module, words in sorted(by_module.items(), key=lambda item: (ours[item[0]], item)):
        plain = sorted(set(filter(None, words)), key=lambda word: (not word[0].isupper(), word))
        line = f"from {module} import {', '.join(plain)}" if plain else f"import {module}"
        if len(line) > 88:
            line = f"from {module} import (\n" + "".join(f"    {word},\n" for word in plain) + ")"
        lines.append(line)
    return "\n".join(lines)


def _shown(outputs: list) -> str:
    """The outputs as text; of the explorer its still picture, behind which a notebook keeps nothing of the live one."""
    outputs = [output for output in outputs if output.get("data") != {}]
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    if outputs and "explorer-still" in outputs[0].get("data", {}).get("text/html", ""):
        texts = texts[:1]
    return "".join(texts).strip()
