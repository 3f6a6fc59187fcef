"""``course hint``, ``reset`` and ``next``: help with one exercise; ``course update``: a new version of them all."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from course_lib.notebooks.places import chapter_path, course_root

root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=course_root,
    help="The course's folder, where it is not the one installed from.",
)


@click.command("hint", short_help="Give a hint to an exercise: idea, shape, first line.")
@click.argument("exercise", metavar="NN.K")
@click.option("--level", type=click.IntRange(1, 3), help="1 the idea, 2 the shape, 3 the first line.")
@root_option
def hint_command(exercise: str, level: int | None, root: Path) -> None:
    """Give a hint to exercise NN.K: first the idea; asked again, the shape; then the first line."""
    from course_lib.progress.points import next_hint

    _, found = _find(exercise, root)
    if not found.hints:
        _stop(f"exercise {found.id} has no hints; its task is in the exercise notebook")
    level = level or next_hint(found.id, len(found.hints), root)
    kinds = ("the idea", "the shape", "the first line")
    click.echo(f"{found.id} · {found.title}: hint {level} of {len(found.hints)}, {kinds[level - 1]}")
    click.echo(found.hints[level - 1])
    if level < len(found.hints):
        click.echo(f"Next: course hint {found.id} --level {level + 1}")


@click.command("reset", short_help="Put an exercise back to how it was shipped.")
@click.argument("exercise", metavar="NN.K")
@root_option
def reset_command(exercise: str, root: Path) -> None:
    """Put the answer cell of exercise NN.K back to how it was shipped. A copy of the notebook is kept."""
    from course_lib.progress.points import forget_hints
    from course_lib.progress.reset import reset

    solution, found = _find(exercise, root)
    try:
        backup = reset(solution, root / "exercises", found.id)
    except ValueError as error:
        _stop(str(error))
    forget_hints(found.id, root)
    if backup is None:
        click.echo(f"{found.id} is as it was shipped already.")
        return
    click.echo(f"{found.id} is as it was shipped. The notebook from before: {backup.relative_to(root)}")
    click.echo("If it is open in JupyterLab, load it again: File, Reload Notebook from Disk.")


@click.command("next", short_help="Say what to do next.")
@root_option
def next_command(root: Path) -> None:
    """Say what to do next: an exercise that lacks points, or the next chapter."""
    from course_lib.progress.next_step import next_step

    try:
        click.echo("\n".join(next_step(root)))
    except ValueError as error:
        _stop(str(error))


@click.command("update", short_help="Get the newest version of the course; your answers and cells stay.")
@root_option
def update_command(root: Path) -> None:
    """Get the newest version of the course with git. Your answers and your own cells are carried into it.

    Save open notebooks first. Each notebook that changes is copied into .backups/ before. Where it cannot be done,
    the exit code is 2 and every file is as before.
    """
    from course_lib.progress.update import update

    try:
        click.echo("\n".join(update(root.resolve())))
    except (ValueError, OSError) as error:
        _stop(str(error))


def _find(number: str, root: Path):
    """The chapter's solution and the exercise ``"05.2"``; ``"5.2"`` is taken for it."""
    from course_lib.notebooks.exercise import read_exercises, read_trusted

    chapter, _, k = number.partition(".")
    try:
        solution = chapter_path(chapter, root / "solutions")
        exercises = {each.id: each for each in read_exercises(read_trusted(solution), solution.stem)}
        name = f"{solution.stem[:2]}.{k}"
        if name not in exercises:
            raise ValueError(f"there is no exercise {number!r}; chapter {chapter} has {', '.join(exercises)}")
    except ValueError as error:
        _stop(str(error))
    return solution, exercises[name]


def _stop(sentence: str) -> None:
    click.echo(sentence, err=True)
    sys.exit(2)
