"""``python -m simulator timeline``: a schedule simulated, as a table, JSON, a picture or a trace."""

from __future__ import annotations

import json as json_
from typing import Any

import click

from simulator.pipeline.engine import simulate
from simulator.pipeline.execution import Execution
from simulator.pipeline.schedules import SCHEDULES, make_schedule


@click.command()
@click.option("--schedule", required=True, help=f"One of {', '.join(SCHEDULES)}.")
@click.option("--ranks", required=True, type=int, help="Pipeline ranks.")
@click.option("--microbatches", required=True, type=int, help="Microbatches in a step.")
@click.option(
    "--chunks", type=int, help="Model chunks on each rank; what the schedule is made for unless given."
)
@click.option("--forward", type=float, default=1, show_default=True, help="Time of one forward.")
@click.option(
    "--backward-input", type=float, default=1, show_default=True, help="Time of a backward for the input."
)
@click.option("--backward-weight", type=float, default=1, show_default=True, help="The same for the weights.")
@click.option(
    "--transfer", type=float, default=0, show_default=True, help="Time of a message to another rank."
)
@click.option("--json", is_flag=True, help="Print the result as JSON.")
@click.option("--svg", type=click.Path(dir_okay=False, writable=True), help="Write a picture.")
@click.option(
    "--trace", type=click.Path(dir_okay=False, writable=True), help="Write a trace for ui.perfetto.dev."
)
def timeline(
    schedule: str,
    ranks: int,
    microbatches: int,
    chunks: int | None,
    forward: float,
    backward_input: float,
    backward_weight: float,
    transfer: float,
    json: bool,
    svg: str | None,
    trace: str | None,
) -> None:
    """Simulate a pipeline schedule: makespan, bubble, and who is busy when."""
    order = make_schedule(schedule, ranks, microbatches, chunks)
    execution = simulate(order, forward, backward_input, backward_weight, transfer)
    if svg:
        from simulator.plots import plot_timeline  # drawing takes longer to import than to simulate

        plot_timeline(execution).save(svg)
    if trace:
        execution.save_trace(trace)
    click.echo(json_.dumps(summary(execution)) if json else table(execution))


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
        f"{result['chunks']} chunks a rank",
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
