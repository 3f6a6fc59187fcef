"""Whether an answer is allowed: it is Python, and nothing in it does the work that the task leaves to the learner.

``course grade`` and the check in the notebook ask the same, so that no notebook shows ✓ for an answer that earns
nothing. The check reads the answer's cell as it was last run, and remembers it: ``course grade`` can say then that the
saved file holds another one.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.grading.checked import remember_check
from course_lib.grading.failed import CheckFailed
from course_lib.notebooks.exercise import answer_id, answer_of, check_id, read_exercises, read_trusted
from course_lib.notebooks.places import course_root

if TYPE_CHECKING:
    from nbformat import NotebookNode

# What an answer may use of course_lib besides what its notebook imports: the rest holds the answers.
LENT = ("course_lib.data", "course_lib.models", "course_lib.observe", "course_lib.runtime")
NOT_LENT = "course_lib.runtime.collectives"
_TIMED = re.compile(r"^([ \t]*)%time[ \t]+", re.MULTILINE)


def plain(source: str) -> str:
    """The answer without ``%time``, which measures a line and does nothing else."""
    return _TIMED.sub(r"\1", source)


def refusal(source: str, imports: Mapping[str, str], not_allowed: Iterable[str]) -> tuple[str, str] | None:
    """Status and sentence for an answer that is not Python, or uses what would do its work; None for any other.

    Names are followed through imports, assignments (``o = torch.optim``) and ``getattr`` with a fixed name.

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
    refused, imported_here = tuple(not_allowed), tuple(imports.values())
    own = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}  # a parameter hides an import
    origins = {name: origin for name, origin in {**imports, **imported(tree)}.items() if name not in own}
    for node in ast.walk(tree):  # a name given to a part of a library stands for that part
        if isinstance(node, ast.Assign) and (dotted := _dotted(node.value, origins)):
            origins.update({target.id: dotted for target in node.targets if isinstance(target, ast.Name)})
    for node in ast.walk(tree):
        for dotted in _used(node, origins):
            line = f"line {getattr(node, 'lineno', '?')} uses `{dotted}`"
            if name := next((name for name in refused if _within(dotted, name)), None):
                return "refused", f"{line}; the task does not allow `{name}`, which would do the work"
            own_part = dotted.startswith("course_lib.") and not any(
                _within(dotted, name) for name in imported_here
            )
            if own_part and (_within(dotted, NOT_LENT) or not any(_within(dotted, name) for name in LENT)):
                own = "an answer is written with what its notebook imports, not with the course's own answer"
                return "refused", f"{line}; {own}"
    return None


def course_imports(solution: NotebookNode) -> dict[str, str]:
    """What the course's own cells import, name -> dotted origin."""
    cells = (cell for cell in solution.cells if cell.cell_type == "code")
    own = [cell.source for cell in cells if not answer_id(cell) and not check_id(cell)]
    return {name: origin for source in own for name, origin in imported(ast.parse(source)).items()}


def imported(tree: ast.AST) -> dict[str, str]:
    """The names that imports bind anywhere in the code, each with its dotted origin."""
    found = {}
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if isinstance(node, ast.ImportFrom):
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            else:
                first = alias.name.partition(".")[0]
                found[alias.asname or first] = alias.name if alias.asname else first
    return found


def _used(node: ast.AST, origins: Mapping[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.asname)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif dotted := _dotted(node, origins):
        yield dotted


def _dotted(node: ast.AST, origins: Mapping[str, str]) -> str | None:
    """The full name of what an expression refers to, where it leads to something that was imported."""
    match node:
        case ast.Name():
            return origins.get(node.id)
        case ast.Attribute(value=value, attr=name):
            pass
        case ast.Call(func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(name)), *_]):
            pass
        case _:
            return None
    base = _dotted(value, origins)
    return base and f"{base}.{name}"


def _within(dotted: str, name: str) -> bool:
    return f"{dotted}.".startswith(f"{name}.")


def refuse_what_is_not_allowed(exercise: str) -> None:
    """Fail the check, in the notebook, of an answer that would earn nothing.

    Raises:
        CheckFailed: with the sentence of ``course grade``.
    """
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cells = shell.history_manager.input_hist_raw if shell and shell.history_manager else []
    source = next((cell for cell in reversed(cells) if answer_of(cell) == exercise), None)
    path = next((course_root() / "solutions").glob(f"{exercise[:2]}_*.ipynb"), None)
    if source is None or path is None:
        return
    if notebook := os.environ.get("JPY_SESSION_NAME"):  # JupyterLab says which one this kernel belongs to
        remember_check(exercise, source, Path(notebook), course_root())
    solution = read_trusted(path)
    listed = {each.id: each.not_allowed for each in read_exercises(solution, path.stem)}
    if exercise in listed and (found := refusal(source, course_imports(solution), listed[exercise])):
        raise CheckFailed([f"`course grade` refuses this answer: {found[1]}"], exercise)
