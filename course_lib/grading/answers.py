"""A learner's notebook, read for its answers and for nothing else, and the notebook that grades them."""

from __future__ import annotations

import ast
import copy
from collections import defaultdict
from dataclasses import dataclass, field

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from course_lib.grading.allowed import course_names, scanned
from course_lib.grading.scan import defined
from course_lib.notebooks.build import digest
from course_lib.notebooks.exercise import Exercise, answer_id, check_id, stub, to_write

# What loads the files of a check before the answer runs.
MATERIAL = '__import__("course_lib.grading.material", fromlist=["material"]).material'
GUARD = '__import__("course_lib.grading.guard", fromlist=["guard"])'


@dataclass
class Submission:
    """What the learner handed in: the sources to run, and what can be said without running them."""

    sources: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, tuple[str, str]] = field(default_factory=dict)  # exercise -> (status, message)
    notes: dict[str, str] = field(default_factory=dict)


def read_answers(learner: NotebookNode, solution: NotebookNode, exercises: list[Exercise]) -> Submission:
    """Take the answers out of the learner's notebook; whatever else it holds is ignored, and said to be."""
    cells: dict[str, list[str]] = defaultdict(list)
    checks: dict[str, list[str]] = defaultdict(list)
    for cell in learner.cells:
        if exercise := answer_id(cell):
            cells[exercise].append(cell.source)
        elif exercise := check_id(cell):
            checks[exercise].append(cell.source.strip())
    kept, imports = course_names(solution, exercises)
    found = Submission()
    for exercise in exercises:
        wanted = solution.cells[exercise.answer].source
        verdict = _verdict(cells[exercise.id], exercise, wanted)
        if verdict is None:
            source = cells[exercise.id][0]
            names = kept - defined(ast.parse(wanted))
            verdict = scanned(source, names, imports, wanted, exercise.not_allowed)
            if verdict is None:
                found.sources[exercise.id] = source
        if verdict is not None:
            found.verdicts[exercise.id] = verdict
        if checks[exercise.id] != [solution.cells[exercise.check].source.strip()]:
            how = {0: "missing", 1: "edited"}.get(len(checks[exercise.id]), "duplicated")
            found.notes[exercise.id] = f"  your {how} check was ignored: the course's own counts."
    return found


def _verdict(sources: list[str], exercise: Exercise, wanted: str) -> tuple[str, str] | None:
    if not sources:
        return (
            "missing",
            f"no cell begins with `# EXERCISE {exercise.id}`; its answer belongs below that line",
        )
    if len(sources) > 1:
        return "refused", f"{len(sources)} cells begin with `# EXERCISE {exercise.id}`; keep one"
    if digest(sources[0]) == digest(stub(wanted, exercise)):
        return "unwritten", f"not written yet: {to_write(wanted, exercise)}"
    return None


@dataclass(frozen=True)
class Part:
    """One code cell of the graded notebook: ``role`` is course, watch, answer, verify, check or verified."""

    exercise: str | None  # the last answer at or above it
    role: str


def graded_notebook(
    solution: NotebookNode,
    exercises: list[Exercise],
    sources: dict[str, str],
    pending: set[str],
    cell_timeout: float,
    course_timeout: float,
) -> tuple[NotebookNode, list[Part]]:
    """The course's own notebook with the learner's answers in it, and what each of its cells is.

    Args:
        sources: the answers to run; the answers of other exercises are left out, with their checks.
        pending: exercises whose checks are to run.
        cell_timeout: seconds for an answer or a check.
        course_timeout: seconds for one of the course's cells.
    """
    cells: list[NotebookNode] = []
    parts: list[Part] = []

    def add(role: str, cell: NotebookNode, timeout: float = course_timeout) -> None:
        cell.metadata["course"] = {"timeout": timeout}
        cell.id = f"cell-{len(cells)}"
        cells.append(cell)
        parts.append(Part(current, role))

    current: str | None = None
    answers = {exercise.answer: exercise.id for exercise in exercises}
    checks = {exercise.check: exercise.id for exercise in exercises}
    last = max(exercise.check for exercise in exercises if exercise.id in pending)
    add("course", new_code_cell(f"{GUARD}.begin()"))
    for index, cell in enumerate(solution.cells[: last + 1]):
        if cell.cell_type != "code":
            continue
        if index in answers:
            if answers[index] in sources:
                current = answers[index]
                add("watch", new_code_cell(f'{MATERIAL}("{current}")\n{GUARD}.watch()'))
                # The last expression of the cell is not shown, however long it is.
                add("answer", new_code_cell(f"{sources[current]}\nNone"), cell_timeout)
        elif index in checks:
            if checks[index] in pending:
                current = checks[index]
                add("verify", new_code_cell(f"{GUARD}.verify()"))
                add("check", copy.deepcopy(cell), cell_timeout)
                add("verified", new_code_cell(f"{GUARD}.verify()\n{GUARD}.forget()"))
        else:
            add("course", new_code_cell(cell.source))
    return new_notebook(cells=cells), parts
