"""Grade a chapter: the learner's answers, among the course's own cells, and each check's own outcome.

Only answers are taken from the learner's notebook (``answers.py``). They run in a process of their own
(``sandbox.py``). One that hangs or ends it loses its exercise; those after it get another process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from course_lib.grading import CELL_TIMEOUT, TIME_LIMIT
from course_lib.grading.answers import Submission, read_answers, to_judge
from course_lib.grading.results import Grade, Result
from course_lib.grading.sandbox import Limits, Verdict, run
from course_lib.notebooks.build import read_notebook
from course_lib.notebooks.exercise import Exercise, read_exercises

OnProgress = Callable[[str, int, int], None]


def failed_grade(solution: Path, message: str) -> Grade:
    """Every exercise of the chapter in error, for one reason."""
    exercises = read_exercises(read_notebook(solution), solution.stem)
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
        solution: the trusted notebook, ``solutions/NN_topic.ipynb``.
        notebook: the learner's.
        cell_timeout: seconds that an answer, or its check, may take.
        time_limit: seconds for all of them.
        memory_limit: bytes that they may hold; by default four fifths of what is free.
        on_progress: called with the exercise that begins, the answers judged, and the answers to judge.

    Raises:
        ValueError: when either is not a notebook, or the solution departs from the form of an exercise.
    """
    trusted = read_notebook(solution)
    exercises = read_exercises(trusted, solution.stem)
    submission = read_answers(read_notebook(notebook), trusted, exercises)
    work = to_judge(trusted, exercises, submission.sources)
    memory = memory_limit or int(0.8 * psutil.virtual_memory().available)
    limits = Limits(cell_timeout, time.monotonic() + time_limit, memory)
    verdicts = {exercise: Verdict(*verdict) for exercise, verdict in submission.verdicts.items()}
    order = [each["exercise"] for each in work]

    def begin(exercise: str) -> None:
        if on_progress:
            on_progress(exercise, order.index(exercise), len(order))

    in_time = True
    while in_time and (left := [each for each in work if each["exercise"] not in verdicts]):
        found, in_time = run(left, limits, begin)
        verdicts |= found
    late = Verdict("timeout", f"not reached within the {time_limit:g} s that grading may take")
    results = [_result(each, verdicts.get(each.id, late), submission) for each in exercises]
    return Grade(solution.stem, results)


def _result(exercise: Exercise, verdict: Verdict, submission: Submission) -> Result:
    message = "\n".join(filter(None, [verdict.message, submission.notes.get(exercise.id)]))
    status = "failed" if verdict.status == "target missed" and not exercise.target else verdict.status
    return Result(exercise, status, message, verdict.facts)
