"""What to do next: the sentences of ``course next``, and of ``course progress`` and ``course grade`` at their end."""

from __future__ import annotations

from pathlib import Path

from course_lib.chapters.course_map import FIRST, LANES
from course_lib.notebooks.exercise import Exercise, done, read_exercises, read_trusted
from course_lib.notebooks.places import exercise_name
from course_lib.progress.points import lane_of, load


def next_step(root: Path) -> list[str]:
    """What to do now, in one or two lines.

    The chapter graded last is finished first, then those of the reader's lane, then the others in the course's order.
    """
    earned = load(root)
    paths = {path.stem: path for path in sorted((root / "solutions").glob("[0-9][0-9]_*.ipynb"))}
    recent = [name for name in reversed(earned) if name in paths]
    lane = LANES.get(lane_of(root) or "", (FIRST,))
    in_lane = [name for number in lane for name in paths if name.startswith(number)]
    for chapter in [*recent[:1], *in_lane, *paths]:
        exercises = read_exercises(read_trusted(paths[chapter]), chapter)
        mine = earned.get(chapter)
        if mine is None:
            return [
                f"Read notebooks/{chapter}.ipynb, then write the answers in exercises/{exercise_name(chapter)}.",
                f"Grade them: course grade {chapter[:2]}",
            ]
        open_ones = [exercise for exercise in exercises if mine.get(exercise.id, 0) < exercise.points]
        if open_ones:
            return _exercise(open_ones, mine, chapter)
    return ["All points of all chapters are yours." if paths else "There are no exercises here yet."]


def _exercise(open_ones: list[Exercise], mine: dict[str, int], chapter: str) -> list[str]:
    wrong = [exercise for exercise in open_ones if mine.get(exercise.id, 0) < exercise.right]
    exercise = (wrong or open_ones)[0]
    what = f"{exercise.id} · {exercise.title} ({exercise.worth}), in exercises/{exercise_name(chapter)}"
    if wrong:
        return [f"Exercise {what}.", f"A hint: course hint {exercise.id}. Then: course grade {chapter[:2]}"]
    return [f"Exercise {what}: it is right, and misses its target.", f"Then: course grade {chapter[:2]}"]


def congratulation(solution: Path) -> list[str]:
    """What a learner is told who has all points of a chapter: where to look now."""
    notebook = read_trusted(solution)
    text = next((text for text in map(done, notebook.cells) if text), None)
    lines = [f"Chapter {solution.stem[:2]} is complete. The course's own answers: solutions/{solution.name}"]
    return lines + ([" ".join(text.split())] if text else [])
