"""Grade a chapter: the learner's answers, the course's notebook, and each check's own outcome.

Only answers are taken from the learner's notebook. What they do is read first (``scan.py``), then watched
(``guard.py``) in a process of its own (``sandbox.py``). An answer that hangs, ends the kernel or tampers with it
loses its exercise; the others are graded again without it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from nbformat import NotebookNode

from course_lib.grading.answers import Part, Submission, graded_notebook, read_answers
from course_lib.grading.complaints import LINE, NOT_WRITTEN
from course_lib.grading.failed import CheckFailed, TargetMissed
from course_lib.grading.files import CourseFiles
from course_lib.grading.limits import CELL_TIMEOUT, COURSE_TIMEOUT, TIME_LIMIT
from course_lib.grading.results import Grade, Result
from course_lib.grading.sandbox import Event, run_notebook
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
        solution: the trusted notebook, ``solutions/NN_topic.ipynb``, executed.
        notebook: the learner's.
        cell_timeout: seconds that an answer, or its check, may take.
        time_limit: seconds for all runs together.
        memory_limit: bytes that a run may hold; by default four fifths of what is free.
        on_progress: called with the exercise, the cells done and the cells in all.

    Raises:
        ValueError: when either is not a notebook, or the solution departs from the form of an exercise.
    """
    trusted = read_notebook(solution)
    exercises = read_exercises(trusted, solution.stem)
    submission = read_answers(read_notebook(notebook), trusted, exercises)
    deadline, files, restored = time.monotonic() + time_limit, CourseFiles(solution), []
    verdicts: dict[str, tuple[str, str]] = dict(submission.verdicts)
    facts: dict[str, tuple[str, ...]] = {}
    while pending := {exercise.id for exercise in exercises} - verdicts.keys():
        sources = {
            e: s
            for e, s in submission.sources.items()
            if e in pending or verdicts[e][0] in ("passed", "target missed", "failed")
        }
        run = _Run(trusted, exercises, sources, pending, cell_timeout, on_progress, files)
        run.go(max(0.0, deadline - time.monotonic()), memory_limit)
        verdicts |= run.verdicts
        facts |= run.facts
        restored += run.restored
        if not run.verdicts or time.monotonic() > deadline:
            late = f"not reached within the {time_limit:g} s that grading may take"
            verdicts |= dict.fromkeys(pending - verdicts.keys(), ("timeout", late))
    results = [_result(e, verdicts[e.id], facts, submission) for e in exercises]
    return Grade(solution.stem, results, sorted(set(restored)))


def _result(exercise: Exercise, verdict: tuple[str, str], facts: dict, submission: Submission) -> Result:
    status, message = verdict
    message = "\n".join(filter(None, [message, submission.notes.get(exercise.id)]))
    return Result(exercise, status, message, facts.get(exercise.id, ()))


class _Run:
    """One pass over the notebook, up to its end or to the answer that spoils it."""

    def __init__(
        self,
        trusted: NotebookNode,
        exercises: list[Exercise],
        sources: dict[str, str],
        pending: set[str],
        cell_timeout: float,
        on_progress: OnProgress | None,
        files: CourseFiles,
    ) -> None:
        self.files, self.sources = files, sources
        self.targets = {exercise.id: exercise.target for exercise in exercises}
        self.notebook, self.parts = graded_notebook(
            trusted, exercises, sources, pending, cell_timeout, COURSE_TIMEOUT
        )
        self.pending, self.cell_timeout, self.on_progress = pending, cell_timeout, on_progress
        self.restored: list[str] = []
        self.verdicts: dict[str, tuple[str, str]] = {}
        self.facts: dict[str, tuple[str, ...]] = {}
        self.outcome: dict[tuple[str | None, str], Event] = {}
        self.current: Part = self.parts[0]

    def go(self, time_limit: float, memory_limit: int | None) -> None:
        reason = run_notebook(self.notebook, self._event, time_limit, memory_limit, self.files.kept)
        self._restore()  # once more: now nothing runs that could change them again
        if reason == "memory":
            self._spoilt(self.current, "error", "it needs more memory than there is to spare")
        elif reason.startswith("broken"):
            self.verdicts |= dict.fromkeys(
                self.pending - self.verdicts.keys(), ("error", f"grading did not start ({reason})")
            )

    def _event(self, event: Event) -> bool:
        """Take one event in; true when nothing more is to be learnt from this kernel."""
        part = self.current = self.parts[event["cell"]]
        if event["event"] == "begin":
            if self.on_progress:
                self.on_progress(part.exercise or "", event["cell"], len(self.parts))
            return False
        self.outcome[part.exercise, part.role] = event
        if self._restore():
            return True
        if event["timed_out"]:
            late = f"the {part.role} took longer than {self._seconds(part):g} s"
            number, line = event["line"]
            if line and line in self.sources.get(part.exercise, ""):
                late += f", and was then in line {number} of your answer: `{line[:LINE]}`"
            late += "; if other programs keep this computer busy, grade again without them"
            self._spoilt(part, "timeout", late)
        elif event["died"]:
            self._spoilt(part, "error", f"the kernel ended in the {part.role}: by os._exit, or a crash?")
        elif event["ename"] == "Tampered":
            self._spoilt(part, "refused", event["evalue"])
        elif not event["passed"] and part.exercise is None:
            what = f"a cell of the course failed: {_first_line(event)}"
            self.verdicts |= dict.fromkeys(self.pending, ("error", what))
        elif part.role == "verified":
            self._decide(part.exercise)
            return event["cell"] == len(self.parts) - 1
        else:
            return False
        return True

    def _restore(self) -> bool:
        """Put back what the answer at hand has changed of the course's files; true where it changed any."""
        changed = self.files.restore()
        if changed:
            self.restored += changed
            what = f"it changes files of the course ({', '.join(changed[:3])}), which are now as they were"
            self._spoilt(self.current, "refused", what)
        return bool(changed)

    def _seconds(self, part: Part) -> float:
        return self.cell_timeout if part.role in ("answer", "check") else COURSE_TIMEOUT

    def _spoilt(self, part: Part, status: str, message: str) -> None:
        """The run ends here, and costs the exercise at hand; before any answer, all of them."""
        for exercise in [part.exercise] if part.exercise else self.pending - self.verdicts.keys():
            self.verdicts[exercise] = (status, message)

    def _decide(self, exercise: str) -> None:
        answer, check = self.outcome[exercise, "answer"], self.outcome[exercise, "check"]
        lines = [line.rstrip() for line in check["stdout"].splitlines()]
        self.facts[exercise] = tuple(line.strip()[2:] for line in lines if line.startswith("  ✓ "))
        verified = self.outcome[exercise, "verify"]["passed"] and self.outcome[exercise, "verified"]["passed"]
        unwritten = next((line for line in lines if line.startswith(f"  ○ {NOT_WRITTEN}")), None)
        if not answer["passed"]:
            self.verdicts[exercise] = _raised(answer, exercise)
        elif unwritten:
            self.verdicts[exercise] = ("unwritten", unwritten.strip()[2:])
        elif check["passed"] and verified:
            self.verdicts[exercise] = ("passed", "")
        elif check["ename"] == TargetMissed.__name__ and self.targets[exercise]:
            self.verdicts[exercise] = ("target missed", check["evalue"])
        elif check["ename"] in (CheckFailed.__name__, TargetMissed.__name__):
            self.verdicts[exercise] = ("failed", check["evalue"])
        else:
            events = (check, self.outcome[exercise, "verify"], self.outcome[exercise, "verified"])
            self.verdicts[exercise] = ("error", _first_line(next(e for e in events if not e["passed"])))


def _raised(event: Event, exercise: str) -> tuple[str, str]:
    unwritten = re.match(rf"{re.escape(exercise)}: (.*)", event["evalue"])
    if event["ename"] == "NotImplementedError" and unwritten:
        return "unwritten", f"{NOT_WRITTEN}: {unwritten[1]}"
    return "error", f"the answer's cell raised {_first_line(event)}"


def _first_line(event: Event) -> str:
    return f"{event['ename']}: {event['evalue']}".splitlines()[0][:400]
