"""What grading a chapter comes to: for each exercise a status, its points of both kinds, and what to say."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    def title(self) -> str:
        return self.exercise.title

    @property
    def points(self) -> int:
        return self.exercise.points

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
        fields = ("id", "title", "points", "earned", "status", "message")
        return {name: getattr(self, name) for name in fields} | _kinds([self])


@dataclass
class Grade:
    """A chapter's results, in the notebook's order.

    Args:
        restored: files of the course that answers had changed, and that are as before again.
    """

    chapter: str
    exercises: list[Result]
    restored: list[str] = field(default_factory=list)

    @property
    def earned(self) -> int:
        return sum(result.earned for result in self.exercises)

    @property
    def possible(self) -> int:
        return sum(result.points for result in self.exercises)

    @property
    def right(self) -> tuple[int, int]:
        """Points for being right: earned, and in all."""
        return sum(r.right for r in self.exercises), sum(r.exercise.right for r in self.exercises)

    @property
    def target(self) -> tuple[int, int]:
        """Points for meeting the targets: earned, and in all."""
        return sum(r.target for r in self.exercises), sum(r.exercise.target for r in self.exercises)

    def as_json(self) -> dict[str, Any]:
        """What ``course grade --json`` prints: ``earned`` and ``possible`` are the sums of both kinds of points."""
        return {
            "chapter": self.chapter,
            "earned": self.earned,
            "possible": self.possible,
            **_kinds(self.exercises),
            "exercises": [result.as_json() for result in self.exercises],
            "restored": self.restored,
        }


def _kinds(results: list[Result]) -> dict[str, dict[str, int]]:
    return {
        kind: {
            "earned": sum(getattr(result, kind) for result in results),
            "possible": sum(getattr(result.exercise, kind) for result in results),
        }
        for kind in ("right", "target")
    }
