"""Which files of the course run in a browser: those that import only Python's standard library and one another."""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("simulator", "course_lib", "play")
ALWAYS = ("simulator", "play.browser")  # packed whole; of course_lib only what a cell imports


def file_of(module: str) -> Path | None:
    """The file of a module of the course, or None."""
    if module.split(".")[0] not in OURS:
        return None
    path = (ROOT / "site" if module.startswith("play") else ROOT).joinpath(*module.split("."))
    return next((p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None)


@cache
def runs_in_browser(module: str) -> bool:
    """Whether the module can be imported where there is only the standard library: no torch, no numpy."""
    todo, seen = [module], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if file_of(name):
            todo += [*_parents(name), *_imported(name)]
        elif name.split(".")[0] not in sys.stdlib_module_names:
            return False
    return True


def modules_for(wanted: list[str]) -> list[str]:
    """All modules of the course that must be packed so that ``wanted`` can be imported, in order of their names.

    Raises:
        ValueError: one of them cannot be imported in a browser.
    """
    todo, found = [*wanted, *_whole_packages()], set()
    while todo:
        name = todo.pop()
        if name in found or not file_of(name):
            continue
        if name in wanted and not runs_in_browser(name):
            raise ValueError(f"{name} imports packages that a browser has not")
        found.add(name)
        todo += [*_parents(name), *(n for n in _imported(name) if file_of(n))]
    return sorted(found)


def pack(modules: list[str], archive: Path) -> None:
    """Write these modules, and the simulator's scripts and styles, into a zip; the same files give the same zip."""
    files = {file_of(name) for name in modules}
    files |= {p for p in (ROOT / "simulator").rglob("*") if p.suffix in (".js", ".css", ".json", ".toml")}
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(files):
            inside = path.relative_to(ROOT / "site" if path.is_relative_to(ROOT / "site") else ROOT)
            entry = zipfile.ZipInfo(inside.as_posix(), date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, path.read_bytes())


def _whole_packages() -> list[str]:
    roots = [file_of(package).parent for package in ALWAYS]
    found = []
    for package, root in zip(ALWAYS, roots, strict=True):
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found.append(".".join([package, *(part for part in parts if part != "__init__")]))
    return found


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


@cache
def _imported(module: str) -> list[str]:
    """What a module of the course imports as soon as it is imported itself: modules, not the names in them."""
    found = []
    for statement in _at_once(ast.parse(file_of(module).read_text(encoding="utf-8")).body):
        if isinstance(statement, ast.Import):
            found += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            inside = [f"{statement.module}.{alias.name}" for alias in statement.names]
            found += [statement.module, *(name for name in inside if file_of(name))]
    return found


def _at_once(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run on import: not those of functions, and not those for type checkers alone."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from _at_once(statement.orelse)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for block in ("body", "orelse", "finalbody"):
                yield from _at_once(getattr(statement, block, []))
            for handler in getattr(statement, "handlers", []):
                yield from _at_once(handler.body)
