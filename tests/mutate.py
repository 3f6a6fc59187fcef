"""Which changed lines do the tests not notice? One small change at a time, and the tests that import the file.

    python tests/mutate.py simulator course_lib/data_parallel --count 100 --seed 0

picks changes by chance, the same ones for the same seed: an operator or a comparison becomes its neighbour, a constant
another one, ``min`` becomes ``max``, a term is dropped. Each is made in a copy of the project, where the tests run that
import the changed module: first directly, then through others. It prints what survives. A survivor is a missing test,
or a line whose change makes no difference; which of the two, a person decides.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("simulator", "course_lib", "tests", "pyproject.toml", "README.md")
OPERATORS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.Pow: "*",
}
COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Change(NamedTuple):
    """Replace ``source[start:end]`` of a file."""

    path: Path
    line: int
    start: int
    end: int
    new: str


# ---- what can be changed ----------------------------------------------------------------------------------


def changes(path: Path) -> list[Change]:
    """Every change of one file, in the order of its text."""
    source = path.read_text(encoding="utf-8")
    found = [
        Change(path, node.lineno, start, end, new)
        for node in _computing(ast.parse(source))
        for start, end, new in _of_node(source, node)
        if source[start:end] != new
    ]
    return sorted(set(found))


def _computing(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute: no annotations, texts, imports, errors that are raised, or decorators."""
    skipped: set[int] = set()
    for node in ast.walk(tree):
        for field in ("annotation", "returns", "decorator_list"):
            inner = getattr(node, field, None) or []
            for part in inner if isinstance(inner, list) else [inner]:
                skipped |= {id(n) for n in ast.walk(part)}
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            skipped |= {id(n) for n in ast.walk(node)}
        if isinstance(node, ast.BinOp) and any(_text(side) for side in (node.left, node.right)):
            skipped.add(id(node))
    return (node for node in ast.walk(tree) if id(node) not in skipped and hasattr(node, "lineno"))


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _of_node(source: str, node: ast.AST) -> Iterator[tuple[int, int, str]]:
    """(start, end, new text) of every change of one node."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        gap = _end(source, node.left), _start(source, node.right)
        yield from _operator(source, *gap, OPERATORS[type(node.op)])
        if isinstance(node.op, ast.Add | ast.Sub):  # the second term is dropped
            yield _end(source, node.left), _end(source, node), ""
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        yield from _operator(
            source, _end(source, node.target), _start(source, node.value), OPERATORS[type(node.op)] + "="
        )
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        gap = _end(source, node.left), _start(source, node.comparators[0])
        yield from _operator(source, *gap, COMPARISONS[type(node.ops[0])])
    elif isinstance(node, ast.BoolOp):
        gap = _end(source, node.values[0]), _start(source, node.values[1])
        yield from _operator(source, *gap, "or" if isinstance(node.op, ast.And) else "and")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield _start(source, node), _start(source, node.operand), ""
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield _start(source, node), _end(source, node), NAMES[node.id]
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        new = not node.value if isinstance(node.value, bool) else node.value + 1
        if isinstance(node.value, float):
            new = node.value * 2 or 1.0
        yield _start(source, node), _end(source, node), repr(new)


def _operator(source: str, start: int, end: int, new: str) -> Iterator[tuple[int, int, str]]:
    """The operator between two operands; brackets and line breaks around it stay."""
    words = source[start:end].strip(" ()\n\\")
    if words and "#" not in words:
        at = source.index(words, start)
        yield at, at + len(words), new


def _start(source: str, node: ast.AST) -> int:
    return _place(source, node.lineno, node.col_offset)


def _end(source: str, node: ast.AST) -> int:
    return _place(source, node.end_lineno, node.end_col_offset)


def _place(source: str, line: int, column: int) -> int:
    """Python counts columns in bytes of UTF-8."""
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())


# ---- which tests ------------------------------------------------------------------------------------------


def imports(path: Path) -> set[str]:
    """Modules of the project that a file names in its imports, those inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("simulator", "course_lib")}


def tests_of(module: str, root: Path) -> list[list[str]]:
    """Test files for ``module``, in the order in which they run: the one of its name, those that import it, and those
    of its package that do so through other modules or stand in the mirrored folder (commands are imported by name).
    """
    packages = [root / "simulator", root / "course_lib"]
    graph = {_name(path, root): imports(path) for package in packages for path in package.rglob("*.py")}
    users = {module}
    while more := {name for name, used in graph.items() if used & users} - users:
        users |= more
    mirror = root.joinpath("tests", *module.split(".")[:-1])
    named, direct, through = [], [], []
    for path in sorted((root / "tests").rglob("test_*.py")):
        used, file = imports(path), str(path.relative_to(root))
        if module in used:
            (named if path.stem == "test_" + module.rpartition(".")[2] else direct).append(file)
        elif path.parent == mirror or (
            used & users and path.relative_to(root).parts[1] == module.split(".")[0]
        ):
            through.append(file)
    return [files for files in (named, direct, through) if files]


def _name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


# ---- trying -----------------------------------------------------------------------------------------------


def survives(change: Change, root: Path, limit: float) -> bool:
    """Make the change, run the tests until one fails or time is up, and take the change back."""
    target = root / change.path.relative_to(ROOT)
    source = target.read_text(encoding="utf-8")
    changed = source[: change.start] + change.new + source[change.end :]
    try:
        compile(changed, str(target), "exec")
    except SyntaxError:
        return False
    target.write_text(changed, encoding="utf-8")
    try:
        return all(_pass(files, root, limit) for files in tests_of(_name(target, root), root))
    finally:
        target.write_text(source, encoding="utf-8")


def _pass(files: list[str], root: Path, limit: float) -> bool:
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return False  # an endless loop has been noticed, too
    return done.returncode in (0, 5)


def shown(change: Change) -> str:
    """``simulator/predict/step.py:88  - -> +  parts = …``."""
    source = change.path.read_text(encoding="utf-8")
    old = " ".join(source[change.start : change.end].split()) or "(nothing)"
    line = source.splitlines()[change.line - 1].strip()
    return f"{change.path.relative_to(ROOT)}:{change.line}  {old} -> {change.new or '(dropped)'}   in: {line}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, help="files or folders to change")
    parser.add_argument("--count", type=int, default=100, help="changes to try (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: 0)")
    parser.add_argument(
        "--limit", type=float, default=180, help="seconds for the tests of one change (default: 180)"
    )
    asked = parser.parse_args()
    files = sorted(
        file for path in asked.paths for file in ([path] if path.suffix == ".py" else path.rglob("*.py"))
    )
    possible = [change for file in files for change in changes(file.resolve())]
    chosen = random.Random(asked.seed).sample(possible, min(asked.count, len(possible)))
    survivors = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copy goes, too
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder) / name)
        for number, change in enumerate(chosen, 1):
            alive = survives(change, Path(folder).resolve(), asked.limit)
            survivors += alive
            print(f"{number:4} {'SURVIVES' if alive else 'killed  '} {shown(change)}", flush=True)
    print(f"{survivors} of {len(chosen)} changes survive; {len(possible)} were possible")


if __name__ == "__main__":
    main()
