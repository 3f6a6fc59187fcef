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
        this |= {"earned": self.earned, "status": self.status, "message": self.message}
        return this | Grade("", [self]).kinds()


@dataclass
class Grade:
    """A chapter's results, in the notebook's order."""

    chapter: str
    exercises: list[Result]

    @property
    def earned(self) -> int:
        return sum(result.earned for result in self.exercises)

    @property
    def possible(self) -> int:
        return sum(result.exercise.points for result in self.exercises)

    def kinds(self) -> dict[str, dict[str, int]]:
        """Points ``earned`` and ``possible`` for being ``right`` and for meeting the ``target``."""
        sides = {"earned": self.exercises, "possible": [result.exercise for result in self.exercises]}
        return {
            kind: {name: sum(getattr(each, kind) for each in side) for name, side in sides.items()}
            for kind in ("right", "target")
        }

    def as_json(self) -> dict[str, Any]:
        """What ``course grade --json`` prints: ``earned`` and ``possible`` are the sums of both kinds of points."""
        points = {"earned": self.earned, "possible": self.possible, **self.kinds()}
        return {"chapter": self.chapter, **points, "exercises": [each.as_json() for each in self.exercises]}
