"""``python -m simulator compare``: a recorded step, by itself or beside the prediction of its plan."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from simulator.cli.answer import print_json
from simulator.cli.options import BATCH, GPU, JSON, PLAN, PLAN_OPTIONS, SHAPE_OPTIONS, Command, given, options
from simulator.cli.parameter_types import Output
from simulator.cli.question import StepQuestion
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.step_timeline import StepTimeline, step_timeline
from simulator.trace.against import laid_over, plan_axes, rows, sentences
from simulator.trace.files.flight_recorder import Recorded, stragglers
from simulator.trace.measured import Measured, measure
from simulator.trace.recorded import read_files

FILES = click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
SVG = click.option(
    "--svg", type=Output(), help="Write a picture; the prediction is drawn over the step, as frames."
)


@click.command(cls=Command)
@FILES
@options(
    {
        "Model": SHAPE_OPTIONS,
        "Plan": [PLAN, BATCH, *PLAN_OPTIONS],
        "Device": [GPU],
        "Output": [SVG, JSON],
    }
)
def compare(files: tuple[Path, ...], as_json: bool, svg: Path | None, **values: Any) -> None:
    """What a recorded step spent its time on, and how it differs from the prediction.

    FILES are traces of PyTorch's profiler, one a rank, and dumps of the Flight Recorder, packed by gzip or not. With
    a model, a plan and --gpu, the step is compared with the one that `step` predicts; course_lib.train prints these
    options. Dumps alone say which rank others wait for.

    \b
    python -m course_lib.train --plan dp=2 --profile traces
    python -m simulator compare traces/*
    python -m simulator compare traces/* --layers 4 --hidden 128 --heads 4 \\
        --vocab 256 --sequence 64 --no-dropout --plan dp=2,precision=fp32 \\
        --global-batch 16 --gpu laptop-cpu --svg step.svg
    """
    question, predicted = _predicted(values)
    traces, dumps = read_files(files)
    if not traces:
        return _tell_dumps(dumps, as_json, question)
    if question is not None and (last := max(trace.rank for trace in traces)) >= question.plan.ranks:
        raise ValueError(f"the plan has {question.plan.ranks} ranks, and there is a trace of rank {last}")
    measured = measure(traces, None if question is None else plan_axes(question.plan))
    if svg:
        _draw(measured, question, predicted, svg)
    cost = None if predicted is None else predicted.cost
    if as_json:
        answer = {
            "steps": measured.steps,
            "seconds": measured.seconds,
            "predicted_seconds": None if cost is None else cost.seconds,
            "parts": [vars(row) for row in rows(measured, cost)],
            "ranks": [{**vars(rank), "idle": rank.idle} for rank in measured.ranks],
            "sentences": sentences(measured, cost),
        }
        return _print(answer, question)
    for sentence in sentences(measured, cost):
        click.echo(sentence)
    click.echo(
        f"\n{'seconds a step, mean of the ranks':36}{'measured':>10}"
        + f"{'predicted':>11}" * (cost is not None)
    )
    for row in rows(measured, cost):
        told = "" if row.predicted is None else f"{row.predicted:11.4g}"
        click.echo(f"  {row.name:34}{row.measured:10.4g}{told}")


def _predicted(values: dict[str, Any]) -> tuple[StepQuestion | None, StepTimeline | None]:
    """None where only the traces are asked about."""
    names = {field.name for cls in (ModelShape, Plan) for field in fields(cls)}
    if not given(values, names | {"model", "config", "plan_text", "gpu", "global_batch"}):
        return None, None
    from simulator.cli.step import read_step

    question = read_step(values)
    return question, step_timeline(question.shape, question.plan, question.hardware)


def _draw(
    measured: Measured, question: StepQuestion | None, predicted: StepTimeline | None, svg: Path
) -> None:
    from simulator.plots import plot_timeline

    over = None
    if question is not None and predicted is not None:
        over = [laid_over(predicted.timeline, question.plan, measured.timeline.ranks)]
    plot_timeline(measured.timeline, over=over, unit="seconds").save(svg)


def _tell_dumps(dumps: list[Recorded], as_json: bool, question: StepQuestion | None) -> None:
    """Where the ranks were when the dumps were written."""
    found = [f"{sentence}." for sentence in stragglers(dumps)]
    found = found or ["All ranks have come to the same collective of every group."]
    if as_json:
        empty = {"steps": 0, "seconds": None, "predicted_seconds": None, "parts": [], "ranks": []}
        return _print(empty | {"sentences": found}, question)
    for sentence in found:
        click.echo(sentence)


def _print(answer: dict[str, Any], question: StepQuestion | None) -> None:
    units = dict.fromkeys(("seconds", "predicted_seconds", "parts", "ranks"), "seconds")
    print_json(
        "compare", units | {"calls": "collectives", "blamed": "collectives, seconds"}, answer, question
    )
