"""What the page of traces asks Python: what a recorded step spent its time on, beside the prediction of its plan."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from play.browser.pictures import WHOLE, plot_timeline
from play.browser.plans import Html, asked_shape, refusal
from simulator.inputs.checks import one_of
from simulator.inputs.known_devices import GPUS
from simulator.inputs.plan import Plan
from simulator.planner.plan_text import read_plan_text, with_lists
from simulator.predict.step_timeline import StepTimeline, step_timeline
from simulator.trace.against import plan_axes, rows, sentences
from simulator.trace.files.flight_recorder import stragglers
from simulator.trace.measured import measure
from simulator.trace.recorded import read_files

FOLDER = Path("/traces")  # where the page writes the files that the reader drops
NONE = "none: the traces alone"


def compared(asked: str, folder: Path = FOLDER) -> Html:
    """The step in these files, or the sentence that says what is wrong with them.

    Args:
        asked: ``{"model": "gpt2", "config": "", "gpu": "h100", "plan": "dp=2,microbatches=8"}`` as JSON; with the
            model ``NONE`` nothing is predicted.
    """
    try:
        return _compared(json.loads(asked), sorted(folder.iterdir()))
    except ValueError as error:
        return refusal(str(error).replace(f"{folder}/", ""))


def _compared(asked: dict[str, str], files: list[Path]) -> Html:
    if not files:
        raise ValueError("choose the traces first, one file of each rank")
    traces, dumps = read_files(files)
    if not traces:
        found = [f"{sentence}." for sentence in stragglers(dumps)]
        return Html(_told(found or ["All ranks have come to the same collective of every group."]))
    plan, predicted = _predicted(asked)
    measured = measure(traces, None if plan is None else plan_axes(plan))
    cost = None if predicted is None else predicted.cost
    table = "".join(
        f"<tr><td>{row.name}</td><td>{row.measured:.4g}</td>"
        + ("" if row.predicted is None else f"<td>{row.predicted:.4g}</td>")
        + "</tr>"
        for row in rows(measured, cost)
    )
    names = "<th>seconds a step, mean of the ranks</th><th>measured</th>" + "<th>predicted</th>" * (
        cost is not None
    )
    both = [measured.timeline] + ([predicted.timeline] if predicted else [])
    titles = ["measured", "predicted"][: len(both)]
    few = sum(len(timeline.spans) for timeline in both) <= WHOLE
    drawn = (
        plot_timeline(*both, titles=titles, unit="s").svg
        if few
        else "<p>It has too many spans for a picture.</p>"
    )
    return Html(
        f"{_told(sentences(measured, cost))}<table><thead><tr>{names}</tr></thead><tbody>{table}</tbody></table>{drawn}"
    )


def _predicted(asked: dict[str, str]) -> tuple[Plan | None, StepTimeline | None]:
    if asked["model"] == NONE:
        return None, None
    one_of("gpu", asked["gpu"], GPUS)
    hardware = GPUS[asked["gpu"]]
    plan = Plan(**with_lists(read_plan_text(asked["plan"]))).on(hardware)
    shape = asked_shape(asked)
    plan.check(shape)
    return plan, step_timeline(shape, plan, hardware)


def _told(said: list[str]) -> str:
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in said)
