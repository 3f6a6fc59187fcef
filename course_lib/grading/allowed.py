"""Whether an answer is allowed: it is Python, and nothing in it does the work that the task leaves to the learner.

``course grade`` and the check in the notebook ask the same, so that no notebook shows ✓ for an answer that earns
nothing. The check reads the answer's cell as it was last run, and remembers it for ``checked.unsaved``.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from course_lib.grading.checked import remember_check
from course_lib.grading.failed import CheckFailed
from course_lib.grading.material import chapter_of
from course_lib.notebooks.exercise import answer_id, answer_of, check_id
from course_lib.notebooks.places import course_root

# What an answer may use of course_lib besides what its notebook imports: the rest holds the answers.
LENT = ("course_lib.data", "course_lib.models", "course_lib.observe", "course_lib.runtime")
NOT_LENT = ("course_lib.runtime.collectives",)
_NAME = re.compile(r"[\w.]+")
_TIMED = re.compile(r"^([ \t]*)%time[ \t]+", re.MULTILINE)


def plain(source: str) -> str:
    """The answer without ``%time``, which measures a line and does nothing else."""
    return _TIMED.sub(r"\1", source)


def refusal(source: str, imports: Mapping[str, str], not_allowed: Iterable[str]) -> tuple[str, str] | None:
    """Status and sentence for an answer that is not Python, or uses what would do its work; None for any other.

    Args:
        source: the answer's cell.
        imports: what the course's cells import, name -> dotted origin.
        not_allowed: full names, such as ``"torch.optim"``: what is inside it is not allowed either.
    """
    try:
        tree = ast.parse(plain(source))
    except SyntaxError as error:
        return "error", f"not Python: {error.msg} (line {error.lineno}: `{(error.text or '').strip()[:80]}`)"
    except (ValueError, RecursionError, MemoryError) as error:
        return "error", f"not Python: {error}"
    origins = {**imports, **imported(tree)}
    for node in ast.walk(tree):  # a name to which the answer gives a meaning of its own is not the course's
        match node:
            case ast.Name(name, ast.Store()) | ast.arg(name) | ast.FunctionDef(name) | ast.ClassDef(name):
                origins.pop(name, None)
    for node in ast.walk(tree):
        for dotted in _used(node, origins):
            line = f"line {getattr(node, 'lineno', '?')} uses `{dotted}`"
            if name := _within(dotted, not_allowed):
                return "refused", f"{line}; the task does not allow `{name}`, which would do the work"
            lent = _within(dotted, LENT) and not _within(dotted, NOT_LENT)
            if dotted.startswith("course_lib.") and not lent and not _within(dotted, imports.values()):
                own = "an answer is written with what its notebook imports, not with the course's own answer"
                return "refused", f"{line}; {own}"
    return None


def course_imports(cells: Sequence[Any]) -> dict[str, str]:
    """What the course's own cells import, name -> dotted origin."""
    own = (c.source for c in cells if c.cell_type == "code" and not answer_id(c) and not check_id(c))
    return {name: origin for source in own for name, origin in imported(ast.parse(source)).items()}


def imported(tree: ast.AST) -> dict[str, str]:
    """The names that imports bind anywhere in the code, each with its dotted origin."""
    found = {}
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            first = alias.name.partition(".")[0]
            if isinstance(node, ast.ImportFrom):
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            else:
                found[alias.asname or first] = alias.name if alias.asname else first
    return found


def _used(node: ast.AST, origins: Mapping[str, str]) -> list[str]:
    """The full names of what a statement imports, or an expression refers to."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return list(imported(node).values())
        case ast.Name() | ast.Attribute() if _NAME.fullmatch(text := ast.unparse(node)):
            first, dot, rest = text.partition(".")
            return [f"{origins[first]}{dot}{rest}"] if first in origins else []
    return []


def _within(dotted: str, names: Iterable[str]) -> str | None:
    """The first of the names that is this one, or holds it."""
    return next((name for name in names if f"{dotted}.".startswith(f"{name}.")), None)


def refuse_what_is_not_allowed(exercise: str) -> None:
    """Fail the check, in the notebook, of an answer that would earn nothing, with the sentence of ``course grade``."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    ran = shell.history_manager.input_hist_raw if shell and shell.history_manager else []
    source = next((cell for cell in reversed(ran) if answer_of(cell) == exercise), None)
    if source is None or not any((course_root() / "solutions").glob(f"{exercise[:2]}_*.ipynb")):
        return
    if notebook := os.environ.get("JPY_SESSION_NAME"):  # JupyterLab says which one this kernel belongs to
        remember_check(exercise, source, Path(notebook), course_root())
    _, cells, exercises = chapter_of(exercise)
    not_allowed = exercises[exercise].not_allowed if exercise in exercises else ()
    if found := refusal(source, course_imports(cells), not_allowed):
        raise CheckFailed([f"`course grade` refuses this answer: {found[1]}"], exercise)
