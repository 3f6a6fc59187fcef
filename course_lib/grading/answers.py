"""A learner's notebook, read for its answers and for nothing else."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field

from nbformat import NotebookNode

from course_lib.grading.allowed import course_imports, plain, refusal
from course_lib.notebooks.build import digest
from course_lib.notebooks.exercise import Exercise, answer_id, check_id, stub, to_write


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
    imports, found = course_imports(solution), Submission()
    for exercise in exercises:
        wanted = solution.cells[exercise.answer].source
        verdict = _verdict(cells[exercise.id], exercise, wanted, imports)
        if verdict is None:
            found.sources[exercise.id] = plain(cells[exercise.id][0])
        else:
            found.verdicts[exercise.id] = verdict
        if checks[exercise.id] != [solution.cells[exercise.check].source.strip()]:
            how = {0: "missing", 1: "edited"}.get(len(checks[exercise.id]), "duplicated")
            found.notes[exercise.id] = f"  your {how} check was ignored: the course's own counts."
    return found


def _verdict(
    sources: list[str], exercise: Exercise, wanted: str, imports: dict[str, str]
) -> tuple[str, str] | None:
    first = f"`# EXERCISE {exercise.id}`"
    if not sources:
        return "missing", f"no cell begins with {first}; its answer belongs below that line"
    if len(sources) > 1:
        return "refused", f"{len(sources)} cells begin with {first}; keep one"
    if digest(sources[0]) == digest(stub(wanted, exercise)):
        return "unwritten", f"not written yet: {to_write(wanted, exercise)}"
    return refusal(sources[0], imports, exercise.not_allowed)


def to_judge(solution: NotebookNode, exercises: list[Exercise], sources: dict[str, str]) -> list[dict]:
    """For ``runner.py``: each answer with the course's cells above it, and the names that its check asks for."""
    found = []
    for exercise in exercises:
        if exercise.id in sources:
            above = [cell for cell in solution.cells[: exercise.answer] if cell.cell_type == "code"]
            course = [cell.source for cell in above if not answer_id(cell) and not check_id(cell)]
            call: ast.Call = ast.parse(solution.cells[exercise.check].source).body[-1].value  # pyright: ignore
            names = [ast.unparse(name) for name in call.args[1:]]
            answer = {"exercise": exercise.id, "source": sources[exercise.id], "names": names}
            found.append(answer | {"course": course})
    return found
