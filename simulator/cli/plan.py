"""``python -m simulator plan``: the fastest plans for a model on so many devices, and what stands in their way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from simulator.any_module.price import Model
from simulator.cli.answer import print_json
from simulator.cli.export import EXPORT, print_export, that_run_in
from simulator.cli.options import (
    BATCH,
    HARDWARE_OPTIONS,
    JSON,
    PLAN_OPTIONS,
    SHAPE_OPTIONS,
    Command,
    Whole,
    options,
)
from simulator.cli.question import StepQuestion, plan_fields, read_hardware, read_model
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.planner.plan_text import plan_text
from simulator.planner.search import Found, Search, search_plans, what_binds, what_helps, why_slower

UNITS = {"seconds": "seconds", "peak_total": "bytes", "mfu": "part of the peak", "helps": "times as fast"}
TOP = click.option("--top", type=Whole(), default=10, metavar="N", help="Plans to show.  [default: 10]")


@click.command(cls=Command)
@options(
    {
        "Model": SHAPE_OPTIONS,
        "Device": HARDWARE_OPTIONS,
        "What is wanted": [BATCH, TOP],
        "What a plan must have (all else is searched)": PLAN_OPTIONS,
        "Other": [EXPORT, JSON],
    }
)
def plan(as_json: bool, top: int, framework: str | None, **values: Any) -> None:
    """The fastest plans that fit, out of all that use every device.

    It needs --gpu, --gpus and --global-batch. Options of a plan are held as they are given: --tp 8, --recompute none.

    \b
    python -m simulator plan --model llama-3-8b --gpu h100 --gpus 16 \\
        --global-batch 256
    python -m simulator plan --config config.json --gpu a100-80gb --gpus 8 \\
        --global-batch 64 --zero 3
    python -m simulator plan --model llama-3-8b --gpu h100 --gpus 16 \\
        --global-batch 256 --export torchtitan > train.sh
    """
    for name in ("gpu", "gpus", "global_batch"):
        if values.get(name) is None:
            raise click.UsageError(f"Missing option '--{name.replace('_', '-')}'.")
    shape, _ = read_model(values)
    if shape is None:
        raise ValueError(f"of {values['model']} only the parameters are known: a plan needs a shape")
    hardware, fixed = read_hardware(values["gpu"]), plan_fields(values)

    def each(plans: Iterator[Plan]) -> Iterator[Plan]:
        return _bar(plans if framework is None else that_run_in(framework, shape, plans))

    found = search_plans(
        shape, hardware, values["gpus"], values["global_batch"], fixed=fixed, keep=top, each=each
    )
    if not found.best:
        raise ValueError(
            f"none of {found.tried:,} plans fits: the smallest needs {found.least / 1e9:.1f} GB on a device and "
            f"{hardware.name} has {hardware.memory / 1e9:.0f} GB; take more devices, or --offload parameters --zero 3"
        )
    best = found.best[0]
    question = StepQuestion(values.get("model"), shape, shape.parameters, best.plan, hardware)
    if framework:
        print_export(framework, question, best.seconds)
    elif as_json:
        _print_json(found, question)
    else:
        _print_table(found, shape, hardware)


def _bar(plans: Iterator[Plan]) -> Iterator[Plan]:
    """A running count on a terminal: how many plans there are is known only at the end."""
    for count, one in enumerate(plans, 1):
        if count % 500 == 0 and sys.stderr.isatty():
            click.echo(f"\r{count:,} plans priced", nl=False, err=True)
        yield one
    if sys.stderr.isatty():
        click.echo("\r" + " " * 30 + "\r", nl=False, err=True)


def _print_table(found: Search, shape: Model, hardware: Hardware) -> None:
    best = found.best[0]
    click.echo(f"{found.tried:,} plans, {found.fitting:,} fit {hardware.name}; the fastest first")
    click.echo(f"{'s a step':>10} {'MFU':>6} {'GB':>6}  plan")
    for one in found.best:
        slower = "" if one is best else f"   {why_slower(one, best)}"
        click.echo(
            f"{one.seconds:10.4g} {one.cost.mfu:6.1%} {one.peak / 1e9:6.1f}  {plan_text(one.plan)}{slower}"
        )
    click.echo(f"Beside arithmetic the best spends most on {what_binds(best)}.")
    helps = sorted(what_helps(shape, hardware, found).items(), key=lambda item: -item[1])
    click.echo("Twice of one thing: " + ", ".join(f"{name} {times - 1:.1%} faster" for name, times in helps))
    if found.with_more_memory:
        click.echo(f"With twice the memory: {plan_text(found.with_more_memory.plan)}")


def _print_json(found: Search, question: StepQuestion) -> None:
    best, shape, hardware = found.best[0], question.shape, question.hardware

    def told(one: Found) -> dict[str, Any]:
        numbers = {"seconds": one.seconds, "mfu": one.cost.mfu, "peak_total": round(one.peak)}
        return numbers | {"line": plan_text(one.plan), "parts": one.cost.parts, "plan": asdict(one.plan)}

    answer = {
        "tried": found.tried,
        "fitting": found.fitting,
        "best": [told(one) for one in found.best],
        "binds": what_binds(best),
        "helps": what_helps(shape, hardware, found),
        "with_more_memory": plan_text(found.with_more_memory.plan) if found.with_more_memory else None,
    }
    print_json("plan", UNITS, answer, question)
