"""``python -m simulator timeline``: a schedule over time, as a table, JSON, a picture or a trace."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import click

from simulator.cli.answer import print_json
from simulator.cli.options import BATCH, GPU, JSON, PLAN_OPTIONS, SHAPE_OPTIONS, Command, flag, given, options
from simulator.cli.parameter_types import Output, Whole
from simulator.cli.question import StepQuestion
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.timeline import Timeline
from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.pipeline.schedules import make_schedule

GIVEN = (
    "ranks",
    "forward",
    "backward_input",
    "backward_weight",
    "transfer",
)  # options of times that are given
FILE = Output()
GIVEN_OPTIONS = [
    click.option("--ranks", type=Whole(), metavar="N", help="Pipeline ranks; with a model it is --pp."),
    click.option("--forward", type=float, metavar="X", help="Time of one forward.  [default: 1]"),
    click.option(
        "--backward-input", type=float, metavar="X", help="Of a backward for the input.  [default: 1]"
    ),
    click.option(
        "--backward-weight", type=float, metavar="X", help="Of a backward for the weights.  [default: 1]"
    ),
    click.option("--transfer", type=float, metavar="X", help="Of a message to another rank.  [default: 0]"),
]
OUTPUT_OPTIONS = [
    JSON,
    click.option("--svg", type=FILE, help="Write a picture."),
    click.option("--trace", type=FILE, help="Write a trace for ui.perfetto.dev or chrome://tracing."),
]


@click.command(cls=Command)
@options(
    {
        "Times as given": GIVEN_OPTIONS,
        "Times as predicted: a model": SHAPE_OPTIONS,
        "Plan": [BATCH, *PLAN_OPTIONS],
        "Device": [GPU],
        "Output": OUTPUT_OPTIONS,
    }
)
def timeline(as_json: bool, svg: Path | None, trace: Path | None, **values: Any) -> None:
    """A pipeline schedule: makespan, bubble, who is busy when, and the longest wait of each rank.

    Either the times are given, in any unit, with --schedule, --ranks and --microbatches. Or they are predicted, in
    seconds, for a model and a plan on --gpu; the trace and the picture then also show what follows once a step.

    A microbatch counts as in flight until its B has ended. What its W needs stays longer.

    \b
    python -m simulator timeline --schedule 1f1b --ranks 4 --microbatches 8
    python -m simulator timeline --model gpt-22b --gpu h100 --pp 8 --tp 2 \\
        --global-batch 32 --trace out.json
    """
    predicted = values.get("gpu") is not None or values.get("model") is not None
    question = seconds = None
    if predicted:
        question, execution, whole, seconds = _predicted(values)
    else:
        execution = whole = _as_given(values)
    if svg:
        from simulator.plots import plot_timeline  # drawing takes longer to import than to simulate

        plot_timeline(whole).save(svg)
    if trace:
        whole.save_trace(trace)
    if as_json:
        unit = "seconds" if predicted else "the unit of the given times"
        units = dict.fromkeys(("makespan", "start", "end", "busy", "step_seconds"), unit)
        units |= {"bubble": "part of all ranks' time", "peak_in_flight": "microbatches"}
        print_json("timeline", units, summary(execution) | {"step_seconds": seconds}, question)
        return
    click.echo(table(execution))
    if question is not None:
        once = whole.makespan - execution.makespan
        click.echo(
            f"\nseconds on {question.hardware.name}; gradients and optimizer take {once:.4g} more after the last "
            f"microbatch, {whole.makespan:.4g} together (step, by its formula: {seconds:.4g})"
        )


def _as_given(values: dict[str, Any]) -> Execution:
    """The schedule with the times of the command line."""
    for name in ("schedule", "ranks", "microbatches"):
        if values.get(name) is None:
            raise click.UsageError(
                f"Missing option '{flag(name)}'. Times as given need --schedule, --ranks and --microbatches; "
                "times as predicted a --model and a --gpu."
            )
    used = {*GIVEN, "schedule", "microbatches", "chunks"}
    names = {*ModelShape.__dataclass_fields__, *Plan.__dataclass_fields__, "global_batch"}
    if unused := [flag(name) for name in given(values, names - used)]:
        raise ValueError(
            f"{', '.join(unused)} would not be used: times as predicted need a --model and a --gpu"
        )
    order = make_schedule(values["schedule"], values["ranks"], values["microbatches"], values["chunks"])
    times: dict[str, Any] = {"forward": 1.0, "backward_input": 1.0, "backward_weight": 1.0, "transfer": 0.0}
    times |= given(values, times)
    for name, time in times.items():
        if not (isfinite(time) and time >= 0):
            raise ValueError(f"{name.replace('_', ' ')} must be a number of at least 0, not {time:g}")
    return simulate(order, **times)


def _predicted(values: dict[str, Any]) -> tuple[StepQuestion, Execution, Timeline, float]:
    """The plan's schedule with predicted times: alone, with what follows, and what ``step`` says of it."""
    from simulator.cli.step import read_step
    from simulator.predict.step import check_fits
    from simulator.predict.step_timeline import step_timeline

    if unused := [flag(name) for name in given(values, GIVEN)]:
        raise ValueError(
            f"{', '.join(unused)} would not be used: with a model the times are predicted, and the ranks are --pp"
        )
    question = read_step(values)
    check_fits(question.shape, question.plan, question.hardware)
    found = step_timeline(question.shape, question.plan, question.hardware)
    return question, found.pipeline, found.timeline, found.cost.seconds


def summary(execution: Execution) -> dict[str, Any]:
    """The JSON contract: lists are by rank, ``bubble`` is idle / total."""
    order = execution.schedule
    return {
        "schedule": order.name,
        "ranks": order.ranks,
        "microbatches": order.microbatches,
        "chunks": order.chunks,
        "makespan": execution.makespan,
        "bubble": execution.bubble(),
        "start": [starts[0] for starts in execution.starts],
        "end": [ends[-1] for ends in execution.ends],
        "busy": [execution.busy(rank) for rank in range(order.ranks)],
        "peak_in_flight": execution.peak_in_flight,
    }


def table(execution: Execution) -> str:
    """The same for people, with the longest wait of each rank."""
    result = summary(execution)
    longest = {}
    for gap in execution.idle_gaps():
        best = longest.get(gap.rank)
        if not gap.cause.endswith("has finished") and (
            best is None or gap.end - gap.start > best.end - best.start
        ):
            longest[gap.rank] = gap
    lines = [
        f"{result['schedule']}: {result['ranks']} ranks, {result['microbatches']} microbatches, "
        f"{result['chunks']} chunk{'s' * (result['chunks'] > 1)} a rank",
        f"makespan {result['makespan']:.6g}",
        f"bubble   {execution.bubble('idle'):.2%} idle / total, {execution.bubble('internal'):.2%} without fill and "
        f"drain, {execution.bubble('overhead'):.2%} over the ideal",
        "",
        " rank      start        end       busy  in flight  longest wait",
    ]
    for rank in range(result["ranks"]):
        gap = longest.get(rank)
        wait = f"{gap.end - gap.start:.6g}: {gap.cause}" if gap else "none"
        lines.append(
            f"{rank:5} {result['start'][rank]:10.6g} {result['end'][rank]:10.6g} {result['busy'][rank]:10.6g} "
            f"{result['peak_in_flight'][rank]:10}  {wait}"
        )
    return "\n".join(lines)
