"""Whether an answer is allowed, asked in the same way by ``course grade`` and by the check in the notebook.

Without this a notebook would show ✓ for an answer that earns nothing. The check reads the answer's cell as it was last
run, and remembers it, so that ``course grade`` can say that the saved file holds another one.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.grading.failed import CheckFailed
from course_lib.grading.not_allowed import uses
from course_lib.grading.scan import defined, imported, plain, scan
from course_lib.notebooks.exercise import Exercise, answer_of, read_exercises, read_trusted
from course_lib.notebooks.places import course_root

if TYPE_CHECKING:
    from nbformat import NotebookNode


def refusal(exercise: str) -> str | None:
    """Why ``course grade`` would refuse the answer as it was last run in this notebook; None where it would not."""
    source = _last_run(exercise)
    path = next((course_root() / "solutions").glob(f"{exercise[:2]}_*.ipynb"), None)
    if source is None or path is None:
        return None
    _remember(exercise, source)
    solution = read_trusted(path)
    exercises = read_exercises(solution, path.stem)
    this = next((each for each in exercises if each.id == exercise), None)
    if this is None:
        return None
    kept, imports = course_names(solution, exercises)
    wanted = solution.cells[this.answer].source
    found = scanned(source, kept - defined(ast.parse(wanted)), imports, wanted, this.not_allowed)
    return found and found[1]


def refuse_what_is_not_allowed(exercise: str) -> None:
    """Fail the check of an answer that would earn nothing.

    Raises:
        CheckFailed: with the sentence of ``course grade``.
    """
    if sentence := refusal(exercise):
        raise CheckFailed([f"`course grade` refuses this answer: {sentence}"], exercise)


def _last_run(exercise: str) -> str | None:
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cells = shell.history_manager.input_hist_raw if shell and shell.history_manager else []
    return next((source for source in reversed(cells) if answer_of(source) == exercise), None)


def _root() -> Path:
    return course_root()


def _remember(exercise: str, source: str) -> None:
    """Where JupyterLab says which notebook this kernel belongs to, what of it was checked."""
    if notebook := os.environ.get("JPY_SESSION_NAME"):
        from course_lib.grading.checked import remember_check

        remember_check(exercise, source, Path(notebook), _root())


def scanned(
    source: str, kept: set[str], imports: dict[str, str], wanted: str, not_allowed: tuple[str, ...]
) -> tuple[str, str] | None:
    source = plain(source)
    try:
        refusal = scan(source, kept, imports, wanted) or uses(source, imports, not_allowed)
    except SyntaxError as error:
        place = f" (line {error.lineno}: `{(error.text or '').strip()[:80]}`)" if error.lineno else ""
        return "error", f"not Python: {error.msg}{place}"
    except (ValueError, RecursionError, MemoryError) as error:
        return "error", f"not Python: {error}"
    return ("refused", refusal) if refusal else None


def course_names(solution: NotebookNode, exercises: list[Exercise]) -> tuple[set[str], dict[str, str]]:
    """Names that the checks load and the imports of the course's own cells: answers leave both alone."""
    answers = {exercise.answer for exercise in exercises}
    checks = {exercise.check for exercise in exercises}
    kept, imports = set(), {}
    for index, cell in enumerate(solution.cells):
        if cell.cell_type != "code" or index in answers:
            continue
        tree = ast.parse(cell.source)
        imports.update(imported(tree))
        if index in checks:
            kept.update(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return kept | imports.keys(), imports
