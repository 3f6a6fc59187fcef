"""``course``: open the course, look at the machine, grade a chapter, see how far you are.

A command imports what it needs when it runs, so that ``course --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import NoReturn

import click

from course_lib.grading import CELL_TIMEOUT, TIME_LIMIT
from course_lib.notebooks.places import chapter_path, exercise_name
from course_lib.progress.commands import (
    hint_command,
    next_command,
    reset_command,
    root_option,
    update_command,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Training large models, by hand."""


@main.command(
    "lab",
    short_help="Open the course in JupyterLab.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@root_option
@click.argument("arguments", metavar="[NN] [OPTIONS OF JUPYTERLAB]...", nargs=-1, type=click.UNPROCESSED)
def lab_command(root: Path, arguments: tuple[str, ...]) -> None:
    """Open the course in JupyterLab, with chapter NN in front (00 where none is named).

    Everything else goes to JupyterLab: course lab 05 --no-browser --port 8899.
    """
    from course_lib.lab import FIRST, run_lab

    chapter, *rest = arguments if arguments and not arguments[0].startswith("-") else (FIRST, *arguments)
    try:
        sys.exit(run_lab(root.resolve(), rest, chapter))
    except ValueError as error:
        _stop(str(error))


@main.command("grade", short_help="Grade the exercises of a chapter.")
@click.argument("number", metavar="NN")
@click.argument("notebook", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and no progress.")
@click.option(
    "--cell-timeout", default=CELL_TIMEOUT, show_default=True, help="Seconds for an answer or a check."
)
@click.option("--time-limit", default=TIME_LIMIT, show_default=True, help="Seconds for the chapter.")
@root_option
def grade_command(
    number: str,
    notebook: Path | None,
    as_json: bool,
    cell_timeout: float,
    time_limit: float,
    root: Path,
) -> None:
    """Grade the exercises of chapter NN: exercises/NN_exercises_topic.ipynb, or the NOTEBOOK named.

    The exit code is 0 when every point is earned, 1 when not, and 2 when there is nothing to grade.
    """
    from rich.console import Console

    from course_lib.grading.checked import unsaved
    from course_lib.grading.grade import failed_grade, grade
    from course_lib.progress.next_step import congratulation, next_step
    from course_lib.progress.points import remember
    from course_lib.progress.tables import grade_table, grading_progress

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that whatever was started is ended
    try:
        solution = chapter_path(number, root / "solutions")
    except ValueError as error:
        _stop(str(error))
    notebook = notebook or root / "exercises" / exercise_name(solution.stem)
    try:
        with contextlib.nullcontext() if as_json else grading_progress(solution.stem) as on_progress:
            result = grade(
                solution,
                notebook,
                cell_timeout=cell_timeout,
                time_limit=time_limit,
                on_progress=on_progress,
            )
    except ValueError as error:
        if as_json:
            click.echo(json.dumps(failed_grade(solution, str(error)).as_json(), ensure_ascii=False))
        _stop(str(error))
    except KeyboardInterrupt:
        click.echo("stopped; nothing is left running", err=True)
        sys.exit(130)
    try:
        remember(result, root)
    except OSError as error:
        click.echo(f"the result is not remembered: {error}", err=True)
    if as_json:
        click.echo(json.dumps(result.as_json(), ensure_ascii=False))
    else:
        Console().print(grade_table(result))
        for sentence in unsaved(notebook, root):
            click.echo(sentence)
        complete = result.earned == result.possible
        click.echo("\n".join([*(congratulation(solution) if complete else []), "", *next_step(root)]))
    sys.exit(0 if result.earned == result.possible else 1)


@main.command("progress", short_help="Show the points of every chapter.")
@root_option
def progress_command(root: Path) -> None:
    """Show what you have earned so far, chapter by chapter, and what to do next."""
    from rich.console import Console

    from course_lib.progress.next_step import next_step
    from course_lib.progress.points import chapters
    from course_lib.progress.tables import progress_table

    try:
        rows, step = chapters(root), next_step(root)
    except ValueError as error:
        _stop(str(error))
    Console().print(progress_table(rows))
    click.echo("\n".join(["", *step]))


for command in (next_command, hint_command, reset_command, update_command):
    main.add_command(command)


@main.command("matrix", short_help="Show which tuning runs with which parallelism.")
def matrix_command() -> None:
    """Show which way of tuning runs with which parallelism, for BERT, BART and LLaMA.

    The tests make this table. A cell is "yes", or the number of the sentence with which it is refused.
    """
    from course_lib.notebooks.places import course_root

    page = course_root() / "docs" / "matrix.md"
    try:
        lines = page.read_text(encoding="utf-8").splitlines()
    except OSError:
        _stop(f"{page} is missing: start the command in the folder of the course")
    # a table of Markdown, with columns as wide as their longest cell
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    rows = [row for row in rows if set("".join(row)) != {"-"}]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    click.echo("\n".join(["", *(line for line in lines if line[:1].isdigit())]))


@main.command("diagnose", short_help="Find what a distributed training step does wrong.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--ranks", type=int, help="How many.  [default: 4, or as many as --mesh has]")
@click.option("--mesh", "axes", default="", help="Names of the axes, such as dp=2,tp=2: sentences name them.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds for the step on the ranks.")
def diagnose_command(file: Path, ranks: int | None, axes: str, timeout: float) -> None:
    """Run the step in FILE on one CPU rank and on several, and say what is wrong with it, one sentence a cause.

    FILE defines step(rank, ranks). It builds a model, makes one training step or a few (forward, backward, optimizer),
    and returns the model, as it is or wrapped (DDP). The process group is ready. The weights and the whole batch must
    be the same for every number of ranks: the seed is set before, and each rank takes its part. With ranks == 1 it is
    what the others are compared with: the same code, or plain code for one device. Modules are matched by their names.

    Everything runs in float64 and without dropout. Compared are all weights, outputs of modules, gradients before the
    optimizer's step, and weights after it. What follows from an earlier cause is not listed: mend it, and run again.

    \b
    def step(rank, ranks):
        model = Net()
        if ranks > 1:
            model = DistributedDataParallel(model)
        inputs, targets = torch.randn(8, 16), torch.randn(8, 4)
        inputs, targets = (x.chunk(ranks)[rank] for x in (inputs, targets))
        F.mse_loss(model(inputs), targets).backward()
        torch.optim.AdamW(model.parameters()).step()
        return model

    The exit code is 0 for a right step, 1 when a cause is found or the step fails, 2 for bad input.
    """
    from course_lib.diagnose.run import diagnose, mesh_of
    from course_lib.runtime import RankError

    try:
        result = diagnose(file.resolve(), ranks, mesh_of(axes), timeout)
    except ValueError as error:
        _stop(str(error))
    except RankError as error:
        click.echo(f"the step fails on one rank:\n{error}", err=True)
        sys.exit(1)
    for sentence in result.sentences:
        click.echo(sentence)
    if not result.sentences:
        click.echo(result.summary())
    sys.exit(1 if result.sentences else 0)


@main.command(
    "simulate",
    short_help="Memory, time and plans of a module of yours.",
    context_settings={"ignore_unknown_options": True},
)
@click.option(
    "--module", required=True, metavar="FILE.py:FUNCTION", help="It returns (model, inputs[, cut])."
)
@click.argument("command", type=click.Choice(["memory", "step", "plan"]))
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def simulate_command(module: str, command: str, arguments: tuple[str, ...]) -> None:
    """Price any nn.Module as `python -m simulator` prices a transformer, and with its options.

    FUNCTION takes no arguments, and returns the module in the dtype in which it is trained, unless --precision says
    another, and a microbatch: a tensor, a tuple, or a dict by name. Nothing is computed, so both may be made under
    torch.device("meta"). --tp is searched, too, where the module carries a tp_plan, as transformers' models do, or
    FUNCTION also returns a function of a model and a mesh, which cuts it as PyTorch's parallelize_module does.

    \b
    course simulate plan --module vit.py:make --gpu h100 --gpus 64 \\
        --global-batch 1024
    course simulate memory --module vit.py:make --gpu h100 --dp 8 --zero 3 \\
        --micro-batch 32

    `python -m simulator plan --help` explains the other options. Context and expert parallelism are refused.
    """
    from course_lib.observe.own_module import traces_of
    from simulator.cli import main as simulator

    try:
        traces = traces_of(module)
    except ValueError as error:
        _stop(str(error))
    simulator([command, *arguments], prog_name="course simulate", obj=traces)


@main.command("doctor", short_help="Look at this machine: what is there, what is missing.")
def doctor_command() -> None:
    """Look at this machine: what is there, what is missing, and how ranks will run."""
    from rich.console import Console

    from course_lib.doctor import FAIL, examine, findings_table  # imports torch

    console = Console()
    with console.status("looking…"):
        findings = list(examine())
    console.print(findings_table(findings))
    sys.exit(1 if any(finding.state == FAIL for finding in findings) else 0)


def _stop(sentence: str) -> NoReturn:
    """The end of a command that cannot do what it was asked."""
    click.echo(sentence, err=True)
    sys.exit(2)


if __name__ == "__main__":
    main(prog_name="course")
