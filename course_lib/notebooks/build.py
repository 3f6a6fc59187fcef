"""Write ``exercises/`` from ``solutions/``, and keep what a learner has written there.

``make exercises`` runs it. The solution is the only source: its marked lines become a ``raise``, and all outputs and
the hints go, so that nothing tells a result before there is an answer. Every exercise notebook remembers what
it was shipped with (a hash of each cell's source), so a later build can tell a learner's cell from an old one of
the course: answers that were edited and cells that were added are carried into the new notebook. ``course update``
carries them over the same way, through a pull.
"""

from __future__ import annotations

import copy
import hashlib
import os
from pathlib import Path

import click
import nbformat
from nbformat import NotebookNode

from course_lib.notebooks.exercise import (
    CHECK_TAG,
    answer_id,
    check_id,
    done,
    hints_id,
    read_exercises,
    read_trusted,
    stub,
)
from course_lib.notebooks.places import exercise_name

METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

DESK = 'from course_lib.observe.show.desk import desk\n\ndesk("{}")'


def digest(source: str) -> str:
    """Tells a cell as shipped from an edited one; blanks at the ends of the cell do not count."""
    return hashlib.sha256(source.strip().encode()).hexdigest()[:12]


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook as nbformat 4.

    Raises:
        ValueError: where there is none, or it is not a notebook.
    """
    read_trusted(path)  # says in a sentence where there is none, or no JSON
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat: a type of its own for each thing that can be missing
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is not a notebook: {reason}") from None
    return notebook


def _text(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write the notebook in one step: whoever reads sees the old one or the new one, never half."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(_text(notebook), encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def make_exercise(solution: NotebookNode, name: str) -> NotebookNode:
    """The exercise notebook that belongs to this solution; the same bytes every time.

    Args:
        solution: the executed solution.
        name: its name without the suffix, such as ``"05_ddp"``.

    Raises:
        ValueError: where the solution departs from the form of an exercise.
    """
    notebook = copy.deepcopy(solution)
    for exercise in read_exercises(solution, name):
        answer, check = notebook.cells[exercise.answer], notebook.cells[exercise.check]
        answer.source = stub(answer.source, exercise)
        check.metadata.tags.remove(CHECK_TAG)  # there is no output to compare with
    notebook.cells = [cell for cell in notebook.cells if not hints_id(cell) and done(cell) is None]
    for cell in notebook.cells:
        cell.id = cell.id.replace("solution", "exercise")
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    link_to_chapter(notebook, name)
    notebook.cells.append(nbformat.v4.new_code_cell(DESK.format(name[:2]), id=f"s{name[:2]}-desk"))
    shipped = [digest(cell.source) for cell in notebook.cells]
    notebook.metadata = nbformat.from_dict({**METADATA, "course": {"chapter": name, "shipped": shipped}})
    return notebook


def link_to_chapter(notebook: NotebookNode, name: str) -> None:
    """End the notebook's opening words with the way back, where they do not link to the chapter themselves.

    The link is named as the notebook's own title names the chapter: ``# 05 · Data parallelism: exercises``.
    """
    opening, chapter = notebook.cells[0], f"../notebooks/{name}.ipynb"
    if opening.cell_type == "markdown" and chapter not in opening.source:
        title = opening.source.partition("\n")[0].removeprefix("# ").removesuffix(": exercises")
        opening.source += f"\n\nThe chapter: [{title}]({chapter})."


def keep_learner(fresh: NotebookNode, old: NotebookNode, base: NotebookNode | None = None) -> list[str]:
    """Carry what the learner wrote in ``old`` over into ``fresh``; return what was kept, in words.

    An answer that differs from the one shipped takes the place of the new one. Any other cell that was not
    shipped with ``old`` is put behind the cell it stood behind, except a check: the course's own stays.

    Args:
        base: the notebook as it was shipped, where it is known. Then a cell of the course that the learner changed
            takes the place of that cell, and stands below it where the new one is another.
    """
    origin = {cell.get("id"): digest(cell.source) for cell in (base.cells if base else [])}
    shipped = {digest(cell.source) for cell in fresh.cells} | set(origin.values())
    shipped |= set(old.metadata.get("course", {}).get("shipped", []))
    answers = {answer_id(cell): cell for cell in fresh.cells if answer_id(cell)}
    kept, answered, behind = [], set(), None
    for cell in old.cells:
        exercise = answer_id(cell)
        if digest(cell.source) in shipped:
            behind = answers.get(exercise) or _same(fresh, cell, digest(cell.source)) or behind
        elif exercise in answers and exercise not in answered:
            answered.add(exercise)
            behind = answers[exercise]
            new = base is not None and digest(behind.source) not in origin.values()
            behind.source, behind.outputs, behind.execution_count = cell.source, [], None
            kept.append(
                f"answer {exercise}" + new * " (the course has changed this cell: read its task again)"
            )
        elif cell.source.strip() and not check_id(cell):
            mine, was = copy.deepcopy(cell), origin.get(cell.get("id"))
            place = _same(fresh, cell, was) if was else None
            if place is not None and digest(place.source) == was:
                fresh.cells = [mine if other is place else other for other in fresh.cells]
                behind = mine
                kept.append("a cell that you had changed")
                continue
            if any(mine.get("id") == other.get("id") for other in fresh.cells):
                mine.id = f"{digest(mine.source)}-{len(fresh.cells)}"
            at = 1 + next((i for i, c in enumerate(fresh.cells) if c is (place or behind)), -1)
            fresh.cells.insert(at, mine)
            behind = mine
            kept.append("your version of a changed cell, below the new one" if was else "a cell of your own")
    return kept


def _same(notebook: NotebookNode, cell: NotebookNode, shipped: str) -> NotebookNode | None:
    """The cell that was shipped with this digest; else the one that has the name of ``cell``."""
    named = (other for other in notebook.cells if cell.get("id") and other.get("id") == cell.id)
    return next((other for other in notebook.cells if digest(other.source) == shipped), None) or next(
        named, None
    )


def build(solution: Path, exercises: Path) -> list[str]:
    """Write the exercise notebook of one solution into a folder; return what of the learner's was kept.

    Raises:
        ValueError: when the solution departs from the form, or the exercise there is not a notebook (it is left).
    """
    fresh = make_exercise(read_notebook(solution), solution.stem)
    path = exercises / exercise_name(solution.stem)
    kept = keep_learner(fresh, read_notebook(path)) if path.exists() else []
    exercises.mkdir(exist_ok=True)
    write_notebook(fresh, path)
    return kept


def drift(solution: Path, exercises: Path) -> str | None:
    """How the exercise notebook departs from its solution, in a sentence; None when it does not.

    To the byte, unless a learner has worked in it: then it only has to descend from this very solution.
    """
    path = exercises / exercise_name(solution.stem)
    if not path.exists():
        return f"{path.name}: there is no exercise for this solution; run `make exercises`"
    fresh, old = make_exercise(read_notebook(solution), solution.stem), read_notebook(path)
    text, course = _text(fresh), fresh.metadata.course
    if path.read_text(encoding="utf-8") == text:
        return None
    worked_in = old.metadata.get("language_info") != METADATA["language_info"] or keep_learner(fresh, old)
    if worked_in and old.metadata.get("course") == course:
        return None
    return f"{path.name} is not what its solution gives; run `make exercises`"


@click.command()
@click.option("--solutions", type=click.Path(path_type=Path), default=Path("solutions"), show_default=True)
@click.option("--exercises", type=click.Path(path_type=Path), default=Path("exercises"), show_default=True)
def main(solutions: Path, exercises: Path) -> None:
    """Write every exercise notebook from its solution, keeping the learner's answers."""
    try:
        for solution in sorted(solutions.glob("[0-9][0-9]_*.ipynb")):
            kept = build(solution, exercises)
            path = exercises / exercise_name(solution.stem)
            click.echo(f"{path}: kept {', '.join(kept)}" if kept else path)
    except ValueError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
