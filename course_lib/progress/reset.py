"""``course reset``: one answer back to how it was shipped, with a copy of the notebook as it was."""

from __future__ import annotations

import copy
from pathlib import Path

from course_lib.notebooks.build import (
    digest,
    make_exercise,
    read_notebook,
    write_notebook,
)
from course_lib.notebooks.exercise import answer_id, check_id
from course_lib.notebooks.places import back_up, exercise_name


def reset(solution: Path, exercises: Path, exercise: str) -> Path | None:
    """Put the shipped answer cell of one exercise back into the learner's notebook; everything else stays.

    Args:
        solution: the chapter's solution notebook.
        exercises: the folder with the learner's notebooks.
        exercise: such as ``"05.2"``.

    Returns:
        The copy of the notebook from before, or None where the answer was as shipped already.

    Raises:
        ValueError: when there is no such exercise, or no notebook to reset.
    """
    path = exercises / exercise_name(solution.stem)
    fresh, mine = make_exercise(read_notebook(solution), solution.stem), read_notebook(path)
    shipped = {name: cell for cell in fresh.cells if (name := answer_id(cell))}
    if exercise not in shipped:
        raise ValueError(
            f"there is no exercise {exercise!r}; chapter {solution.stem} has {', '.join(shipped)}"
        )
    found = [cell for cell in mine.cells if answer_id(cell) == exercise]
    if [digest(cell.source) for cell in found] == [digest(shipped[exercise].source)]:
        return None
    backup = back_up(path, exercises.parent)
    if found:
        place = mine.cells.index(found[0])
    else:  # the cell was deleted: above its check, or at the end
        checks = (i for i, cell in enumerate(mine.cells) if check_id(cell) == exercise)
        place = next(checks, len(mine.cells))
    mine.cells = [cell for cell in mine.cells if not any(cell is other for other in found)]
    mine.cells.insert(place, copy.deepcopy(shipped[exercise]))
    write_notebook(mine, path)
    return backup
