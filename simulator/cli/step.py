"""``python -m simulator step``: how long one training step takes, and what it spends its time on."""

from __future__ import annotations

from typing import Any

import click

from simulator.any_module.price import memory_of, step_of
from simulator.cli.answer import print_json
from simulator.cli.export import EXPORT, print_export
from simulator.cli.options import (
    BATCH,
    HARDWARE_OPTIONS,
    JSON,
    PLAN,
    PLAN_OPTIONS,
    SHAPE_OPTIONS,
    Command,
    options,
)
from simulator.cli.question import StepQuestion, read_question
from simulator.predict.step import check_room

UNITS = {
    "seconds": "seconds",
    "tokens_per_second": "tokens a second, on all ranks",
    "tflops_per_gpu": "TFLOP/s",
    "mfu": "part of the peak",
    "hfu": "part of the peak",
    "parts": "seconds",
    "peak_total": "bytes",
    "capacity": "bytes",
}


@click.command(cls=Command)
@options(
    {
        "Model": SHAPE_OPTIONS,
        "Plan": [PLAN, BATCH, *PLAN_OPTIONS],
        "Device": HARDWARE_OPTIONS,
        "Other": [EXPORT, JSON],
    }
)
def step(as_json: bool, framework: str | None, **values: Any) -> None:
    """Seconds of one training step, by part, with MFU and HFU.

    It needs --gpu and --global-batch. A plan that does not fit is refused, and `memory` says what would fit.

    \b
    python -m simulator step --model gpt2-xl --gpu h100 --dp 8 --global-batch 64
    """
    question = read_step(values)
    shape, plan, hardware = question.shape, question.plan, question.hardware
    ranks = memory_of(shape, plan, hardware)
    check_room(max(rank.occupied for rank in ranks), hardware)
    cost = step_of(shape, plan, hardware)
    if framework:
        return print_export(framework, question, cost.seconds)
    if as_json:
        numbers = {name: getattr(cost, name) for name in ("seconds", "tflops_per_gpu", "mfu", "hfu")}
        answer = numbers | {
            "tokens_per_second": plan.global_batch * shape.sequence / cost.seconds,
            "parts": cost.parts,
            "peak_total": round(max(rank.total for rank in ranks)),
            "capacity": hardware.memory,
        }
        print_json("step", UNITS, answer, question)
        return
    click.echo(
        f"{plan.ranks} x {hardware.name}: {cost.seconds:.4g} s a step of {plan.global_batch} sequences"
    )
    click.echo(f"MFU {cost.mfu:.1%}, HFU {cost.hfu:.1%}, {cost.tflops_per_gpu:.4g} TFLOP/s on each device")
    for name, seconds in sorted(cost.parts.items(), key=lambda part: -part[1]):
        if seconds:
            click.echo(f"  {name.replace('_', ' '):22}{seconds:10.4g} s {seconds / cost.seconds:7.1%}")


def read_step(values: dict[str, Any]) -> StepQuestion:
    """It needs a shape, a device and a batch."""
    for name in ("gpu", "global_batch"):
        if values.get(name) is None:
            raise click.UsageError(f"Missing option '--{name.replace('_', '-')}'.")
    question = read_question(values)
    if question.shape is None:
        raise ValueError(
            f"of {question.model} only the parameters are known: the time of a step needs a shape"
        )
    return StepQuestion(**vars(question))
