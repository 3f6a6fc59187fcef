"""``--export NAME`` of ``plan`` and ``step``: the plan as another framework's file or flags."""

from __future__ import annotations

from collections.abc import Iterator

import click

from simulator.any_module.price import Model
from simulator.cli.question import StepQuestion
from simulator.export import FRAMEWORKS, export
from simulator.inputs.plan import Plan
from simulator.planner.plan_text import plan_text

EXPORT = click.option(
    "--export",
    "framework",
    type=click.Choice(FRAMEWORKS),
    metavar="NAME",
    help=f"Print the file or flags that run the plan in {', '.join(FRAMEWORKS)}.",
)


def print_export(framework: str, question: StepQuestion, seconds: float) -> None:
    """What its reader must know beside the file goes to stderr."""
    shape, plan, node_size = question.shape, question.plan, question.hardware.node_size
    text, notes = export(framework, shape, plan, model=question.model, node_size=node_size)
    click.echo(text, nl=False)
    for note in [f"{seconds:.4g} s a step: --plan {plan_text(plan)}", *notes]:
        click.echo(note, err=True)


def that_run_in(framework: str, shape: Model, plans: Iterator[Plan]) -> Iterator[Plan]:
    """The plans that a framework can run; if it can run none, its last sentence is raised."""
    refused, some = None, False
    for plan in plans:
        try:
            export(framework, shape, plan)
        except ValueError as error:
            refused = error
        else:
            some = True
            yield plan
    if refused is not None and not some:
        raise refused
