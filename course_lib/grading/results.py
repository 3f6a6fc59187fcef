"""What grading a chapter comes to: for each exercise a status, its points of both kinds, and what to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.notebooks.exercise import Exercise


@dataclass
class Result:
    """One exercise as graded.

    Args:
        status: ``passed``; ``target missed``, which is right; ``failed``; ``unwritten``; ``refused``, ``timeout``,
            ``missing`` or ``error``, where the check could not judge.
        message: what is wrong, a line each, with indented lines that help.
        facts: what the check found right.
    """

    exercise: Exercise
    status: str = "error"
    message: str = ""
    facts: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.exercise.id

    @property
    def right(self) -> int:
        """Points earned for being right."""
        return self.exercise.right if self.status in ("passed", "target missed") else 0

    @property
    def target(self) -> int:
        """Points earned for meeting the target."""
        return self.exercise.target if self.status == "passed" else 0

    @property
    def earned(self) -> int:
        return self.right + self.target

    def as_json(self) -> dict[str, Any]:
        """The result as ``course grade --json`` prints it."""
        this = {"id": self.id, "title": self.exercise.title, "points": self.exercise.points}
        return {
            **this,
            "earned": self.earned,
            "status": self.status,
            "message": self.message,
            **_kinds([self]),
        }


@dataclass
class Grade:
    """A chapter's results, in the notebook's order; points are ``(earned, possible)``."""

    chapter: str
    exercises: list[Result]

    @property
    def right(self) -> tuple[int, int]:
        """For being right."""
        return sum(r.right for r in self.exercises), sum(r.exercise.right for r in self.exercises)

    @property
    def target(self) -> tuple[int, int]:
        """For meeting the targets."""
        return sum(r.target for r in self.exercises), sum(r.exercise.target for r in self.exercises)

    @property
    def earned(self) -> int:
        return self.right[0] + self.target[0]

    @property
    def possible(self) -> int:
        return self.right[1] + self.target[1]

    def as_json(self) -> dict[str, Any]:
        """What ``course grade --json`` prints: ``earned`` and ``possible`` are the sums of both kinds of points."""
        points = {"earned": self.earned, "possible": self.possible, **_kinds(self.exercises)}
        return {"chapter": self.chapter, **points, "exercises": [each.as_json() for each in self.exercises]}


def _kinds(results: list[Result]) -> dict[str, dict[str, int]]:
    return {
        kind: {
            "earned": sum(getattr(result, kind) for result in results),
            "possible": sum(getattr(result.exercise, kind) for result in results),
        }
        for kind in ("right", "target")
    }
