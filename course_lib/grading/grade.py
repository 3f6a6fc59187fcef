"""Grade a chapter: the learner's answers, among the course's own cells, and each check's own outcome.

Only answers are taken from the learner's notebook. They run in a process of their own (``sandbox.py``). One that hangs
or ends it loses its exercise; those after it get another process.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from course_lib.grading import CELL_TIMEOUT, TIME_LIMIT
from course_lib.grading.allowed import course_imports, plain, refusal
from course_lib.grading.material import course_above, names_asked
from course_lib.grading.results import Grade, Result
from course_lib.grading.sandbox import Limits, Verdict, run
from course_lib.notebooks.exercise import (
    Exercise,
    answer_id,
    check_id,
    read_exercises,
    read_trusted,
    stub,
    to_write,
)

OnProgress = Callable[[str, int, int], None]


def failed_grade(solution: Path, message: str) -> Grade:
    """Every exercise of the chapter in error, for one reason."""
    exercises = read_exercises(read_trusted(solution), solution.stem)
    return Grade(solution.stem, [Result(e, "error", message) for e in exercises])


def grade(
    solution: Path,
    notebook: Path,
    *,
    cell_timeout: float = CELL_TIMEOUT,
    time_limit: float = TIME_LIMIT,
    memory_limit: int | None = None,
    on_progress: OnProgress | None = None,
) -> Grade:
    """Grade the answers in ``notebook`` by the chapter's solution.

    Args:
        solution: the trusted notebook, ``solutions/NN_topic.ipynb``; ``notebook`` is the learner's.
        cell_timeout: seconds that an answer, or its check, may take; ``time_limit``: for all of them.
        memory_limit: bytes that they may hold; by default four fifths of what is free.
        on_progress: called with the exercise that begins, the answers judged, and the answers to judge.

    Raises:
        ValueError: when either is not a notebook, or the solution departs from the form of an exercise.
    """
    trusted, given = read_trusted(solution), read_trusted(notebook)
    exercises = read_exercises(trusted, solution.stem)
    answers, checks = _cells_of(given.cells, answer_id), _cells_of(given.cells, check_id)
    imports = course_imports(trusted.cells)
    verdicts: dict[str, Verdict] = {}
    work: list[dict[str, Any]] = []
    for this in exercises:
        wanted, asked = trusted.cells[this.answer].source, trusted.cells[this.check].source
        if said := unjudged(answers[this.id], this, wanted, imports):
            verdicts[this.id] = Verdict(*said)
        else:
            answer = {"exercise": this.id, "source": plain(answers[this.id][0]), "names": names_asked(asked)}
            work.append(answer | {"course": course_above(trusted.cells, this)})

    def begin(exercise: str) -> None:
        order = [each["exercise"] for each in work]
        if on_progress:
            on_progress(exercise, order.index(exercise), len(order))

    memory = memory_limit or int(0.8 * psutil.virtual_memory().available)
    limits, in_time = Limits(cell_timeout, time.monotonic() + time_limit, memory), True
    while in_time and (left := [each for each in work if each["exercise"] not in verdicts]):
        found, in_time = run(left, limits, begin)
        verdicts |= found
    late = Verdict("timeout", f"not reached within the {time_limit:g} s that grading may take")

    def result(this: Exercise) -> Result:
        status, message, facts = verdicts.get(this.id, late)
        if [c.strip() for c in checks[this.id]] != [trusted.cells[this.check].source.strip()]:
            how = {0: "missing", 1: "edited"}.get(len(checks[this.id]), "duplicated")
            note = f"  your {how} check was ignored: the course's own counts."
            message = "\n".join(filter(None, [message, note]))
        status = "failed" if status == "target missed" and not this.target else status
        return Result(this, status, message, facts)

    return Grade(solution.stem, [result(each) for each in exercises])


def _cells_of(cells: Sequence[Any], which: Callable[[Any], str | None]) -> dict[str, list[str]]:
    """The sources of the cells that answer an exercise, or check it."""
    found = defaultdict(list)
    for cell in cells:
        if exercise := which(cell):
            found[exercise].append(cell.source)
    return found


def unjudged(
    sources: list[str], exercise: Exercise, wanted: str, imports: dict[str, str]
) -> tuple[str, str] | None:
    """Status and sentence for what need not be run; None for an answer."""
    first = f"`# EXERCISE {exercise.id}`"
    if not sources:
        return "missing", f"no cell begins with {first}; its answer belongs below that line"
    if len(sources) > 1:
        return "refused", f"{len(sources)} cells begin with {first}; keep one"
    if sources[0].strip() == stub(wanted, exercise).strip():
        return "unwritten", f"not written yet: {to_write(wanted, exercise)}"
    return refusal(sources[0], imports, exercise.not_allowed)
