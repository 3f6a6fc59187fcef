"""What an answer may contain: read before it is run, so that an answer answers and does nothing else.

This is the first of three lines of defence, and the one that explains itself; ``guard.py`` watches while the
answer runs, and ``grade.py`` believes only each check's own outcome. An honest answer never meets it.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALLOWED_IMPORTS = _words(
    """torch numpy math cmath random statistics time functools itertools operator collections contextlib gc
    dataclasses typing abc enum copy heapq bisect re string fractions numbers warnings __future__
    transformers torchview torchinfo torchviz simulator course_lib"""
)
# Modules that reach the machine or the interpreter, under whatever other module they are found.
MODULES = _words(
    """os sys io subprocess builtins importlib ctypes inspect threading multiprocessing concurrent signal
    socket shutil pathlib pickle code codeop types IPython ipykernel grading overrides hub cpp_extension
    _os _sys _C _collections_abc"""
)
# What an answer may import from course_lib besides what its notebook imports: the rest holds the answers.
LENT = ("course_lib.data", "course_lib.models", "course_lib.observe", "course_lib.runtime")
NOT_LENT = "course_lib.runtime.collectives"
# Ways around the messages that a check counts: through files, or below what counts them.
FILES = _words(
    """save savez savez_compressed savetxt load loadtxt genfromtxt fromfile from_file tofile memmap open_memmap
    DataSource FileStore TCPStore"""
)
BELOW = _words("_get_backend _python_dispatch _disable_current_modes _DisableTorchDispatch")
BUILTINS = _words("exec eval compile __import__ open breakpoint exit quit get_ipython")
FRAMES = _words(
    "f_globals f_builtins f_locals f_back f_code tb_frame tb_next gi_frame cr_frame ag_frame gi_code"
)
DUNDERS = _words(
    """init post_init new call len iter next getitem setitem delitem contains getattr setattr enter exit eq ne lt le
    gt ge hash repr str bool int float index add radd iadd sub rsub mul rmul matmul rmatmul truediv rtruediv
    floordiv mod pow neg abs reversed name qualname doc version annotations slots main future dict"""
)
_HIDDEN = re.compile(r"__\w+?__")
_MARKER = re.compile(r"#\s*(NBVAL_\w+|PYTEST_VALIDATE\w+)")
_TIMED = re.compile(r"^([ \t]*)%time[ \t]+", re.MULTILINE)
_MAGIC = re.compile(r"^\s*([%!?]\S*)", re.MULTILINE)


def scan(source: str, kept: Iterable[str], imports: dict[str, str], solution: str = "") -> str | None:
    """Why an answer is refused, in one sentence; None when it is not.

    Args:
        source: the answer cell.
        kept: names that the course's cells use and this answer is not asked to define.
        imports: what the course's cells import, name -> dotted origin; to import the same again is fine.
        solution: the course's own answer; files that it writes or reads, and what it imports, are no way around.

    Raises:
        SyntaxError: when the answer is not Python.
    """
    if marker := _MARKER.search(source):
        return f"it holds the marker `{marker[1]}`; an answer is graded without markers"
    try:
        tree = ast.parse(source)
    except SyntaxError:
        if magic := _MAGIC.search(source):
            return f"it uses the notebook command `{magic[1]}`; an answer is plain Python"
        raise
    reader = _Reader(set(kept), imports, ast.parse(solution))
    reader.visit(tree)
    return reader.refusal


def plain(source: str) -> str:
    """The answer without ``%time``, which measures a line and does nothing else."""
    return _TIMED.sub(r"\1", source)


def imported(tree: ast.AST) -> dict[str, str]:
    """The names that imports bind anywhere in the code, each with its dotted origin."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update({name: origin for name, origin in _bound(node)})
    return found


def _bound(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        else:
            first = alias.name.partition(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (first, first)


def defined(tree: ast.AST) -> set[str]:
    """The names a cell binds at its top level, in whatever way; ``global`` names count, locals do not."""
    names: set[str] = set()
    stack = list(ast.iter_child_nodes(tree))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            names.update(n for inner in ast.walk(node) if isinstance(inner, ast.Global) for n in inner.names)
            stack.extend(node.decorator_list)
            continue
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            names.update(inner.target.id for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names.update(name for name, _ in _bound(node))
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        stack.extend(ast.iter_child_nodes(node))
    return names


class _Reader(ast.NodeVisitor):
    """Walks an answer; ``refusal`` is the first thing that does not belong there."""

    def __init__(self, kept: set[str], imports: dict[str, str], solution: ast.AST) -> None:
        self.refusal: str | None = None
        self.kept, self.course_imports = kept, imports
        self.origins = {*imports.values(), *imported(solution).values()}
        self.files = FILES - {node.attr for node in ast.walk(solution) if isinstance(node, ast.Attribute)}
        self.checks = {name for name, origin in imports.items() if "grading" in origin.split(".")}
        self.foreign: set[str] = set()

    def refuse(self, node: ast.AST, what: str, accepted: str) -> None:
        if self.refusal is None:
            self.refusal = f"line {getattr(node, 'lineno', 1)} {what}; {accepted}"

    def visit_Module(self, node: ast.Module) -> None:
        own = imported(node)
        self.foreign = (own.keys() | self.course_imports.keys()) - _locals(node)
        for name in sorted(defined(node)):
            if name in own and self.course_imports.get(name) == own[name]:
                continue
            if name in self.kept:
                self.refuse(node, f"redefines `{name}`", "the course's own cells use it: choose another name")
            elif (
                hasattr(builtins, name) and name != "_"
            ) or name in BUILTINS:  # `_` appears there once shown
                self.refuse(node, f"redefines Python's `{name}`", "choose another name")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring may name anything
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if node.level or alias.name == "*":
                self.refuse(node, "imports `*` or from `.`", "import modules and names one by one")
            self._module(node, f"{node.module}.{alias.name}")

    def _module(self, node: ast.AST, dotted: str) -> None:
        root, *rest = dotted.split(".")
        if root not in ALLOWED_IMPORTS or MODULES & set(rest):
            self.refuse(
                node,
                f"imports `{dotted}`",
                "an answer may import torch, numpy, course_lib, simulator and the plain parts of the standard "
                "library (math, random, itertools, functools, collections, dataclasses, typing, …)",
            )
        elif root == "course_lib" and dotted not in self.origins and not _is_lent(dotted):
            accepted = "an answer is written with what its notebook imports, not with the course's own answer"
            self.refuse(node, f"imports `{dotted}`", accepted)
        for name in rest:
            self._way_around(node, name)

    def _way_around(self, node: ast.AST, name: str) -> None:
        if name in self.files:
            self.refuse(
                node, f"uses `{name}`", "an answer needs no files: what ranks know travels in messages"
            )
        elif name in BELOW:
            self.refuse(node, f"uses `{name}`", "an answer stays where its messages are counted")

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.checks & self.foreign:
            self.refuse(
                node, f"uses `{node.id}`", "an answer is judged by the checks, and does not call them"
            )
        if node.id in BUILTINS and isinstance(node.ctx, ast.Load):
            self.refuse(node, f"uses `{node.id}`", "an answer computes, and needs no way around that")
        self._attribute(node, node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        root = _root(node)
        if not isinstance(node.ctx, ast.Load) and root in self.foreign:
            self.refuse(
                node, f"changes an attribute of `{root}`", "an answer leaves what it imports as it is"
            )
        if node.attr in MODULES and (root in self.foreign or node.attr.startswith("_")):
            self.refuse(
                node, f"reaches for `{node.attr}` through `{root or 'a value'}`", "use what the task names"
            )
        if root != "self":
            self._way_around(node, node.attr)
        self._attribute(node, node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name in ("setattr", "delattr") and node.args and _root(node.args[0]) in self.foreign:
            root = _root(node.args[0])
            self.refuse(
                node, f"changes an attribute of `{root}`", "an answer leaves what it imports as it is"
            )
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            for hidden in _HIDDEN.findall(node.value):
                self._attribute(node, hidden)

    def _attribute(self, node: ast.AST, name: str) -> None:
        if name in FRAMES or (_HIDDEN.fullmatch(name) and name.strip("_") not in DUNDERS):
            self.refuse(node, f"uses `{name}`", "an answer needs none of Python's own machinery")


def _is_lent(dotted: str) -> bool:
    within = [place for place in (*LENT, NOT_LENT) if f"{dotted}.".startswith(f"{place}.")]
    return bool(within) and NOT_LENT not in within


def _locals(tree: ast.AST) -> set[str]:
    """Parameters and variables of the functions in the code: what they name is not an import."""
    functions = [
        n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    ]
    inner = [n for function in functions for n in ast.walk(function)]
    stored = {n.id for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return stored | {n.arg for n in inner if isinstance(n, ast.arg)}


def _root(node: ast.AST) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None
