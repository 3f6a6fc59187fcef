"""Read a drawing of the explorer back from its pixels, and hold it to the simulator's numbers."""

from __future__ import annotations

from playwright.sync_api import Frame, Locator, Page

from simulator.explorer import Explorer
from simulator.explorer.question import Question
from simulator.pipeline.execution import Execution
from simulator.plots.timeline import COLOURS, IDLE

KINDS = {"F": "forward", "B": "backward", "BW": "backward", "W": "weight gradients"}
# The colours at some points of a canvas, in its own pixels as it is shown.
PIXELS = """(canvas, points) => {
  const scale = canvas.width / canvas.getBoundingClientRect().width, pen = canvas.getContext("2d");
  return points.map(([x, y]) => "#" + [...pen.getImageData(Math.round(x * scale), Math.round(y * scale), 1, 1).data]
    .slice(0, 3).map(value => value.toString(16).padStart(2, "0")).join(""));
}"""
SHOWN = """asked => {
  const shown = JSON.parse(document.querySelector(".explorer").dataset.shown ?? "{}"); // or not yet
  return Object.keys(asked).every(name => JSON.stringify(asked[name]) === JSON.stringify(shown[name]));
}"""
FRAME = "canvas => Object.fromEntries(Object.entries(canvas.dataset).map(([name, value]) => [name, Number(value)]))"


def wait_until_drawn(view: Page | Frame, question: Question, schedule: str | None = None) -> Locator:
    """The first timeline's canvas, once it shows this question; ``schedule``: its name there, where it is another."""
    asked = question.as_dict() | ({"schedule": schedule} if schedule else {})
    view.locator(".explorer[data-shown]").first.wait_for()
    view.wait_for_function(SHOWN, arg=asked)
    return view.locator("canvas.timeline").first


def wrong_boxes(canvas: Locator, question: Question, measured: Execution | None = None) -> list[str]:
    """Actions and gaps whose place does not show their colour: a sentence for each. Schedules of one chunk a rank.

    With a measured step, it is looked for in the lower halves of the rows.
    """
    execution, frame = measured or Explorer(question).execution(), canvas.evaluate(FRAME)
    top = frame["row"] // 2 - 1 if measured else 0
    pixels_a_unit = (frame["right"] - frame["left"]) / (frame["to"] - frame["from"])
    sides = []  # what, its rank, where, its colour
    for rank, actions in enumerate(execution.schedule.actions):
        for action, start, end in zip(actions, execution.starts[rank], execution.ends[rank], strict=True):
            sides.append((f"{action}", rank, start, end, COLOURS[KINDS[action.kind]][0]))
    for rank, start, end, cause in execution.idle_gaps():
        sides.append((f"gap, since {cause}", rank, start, end, IDLE))
    sides = [side for side in sides if (side[3] - side[2]) * pixels_a_unit > 6]  # wide enough for both points
    points = []
    for _, rank, start, end, _ in sides:
        y = rank * frame["row"] + top + 3  # above the number
        for inside in (start + 2.5 / pixels_a_unit, end - 2.5 / pixels_a_unit):
            points.append([frame["left"] + (inside - frame["from"]) * pixels_a_unit, y])
    found = canvas.evaluate(PIXELS, points)
    wrong = []
    for k, (what, rank, start, end, colour) in enumerate(sides):
        for seen in found[2 * k : 2 * k + 2]:
            if seen != colour:
                wrong.append(f"{what}, rank {rank}, {start} to {end}: {seen} and not {colour}")
    return wrong


def drawn_bytes(canvas: Locator, rank: int, times: list[float]) -> list[float]:
    """How high the bytes of a rank stand at these times, as a part of the row: read from the pixels."""
    frame = canvas.evaluate(FRAME)
    size = (frame["right"] - frame["left"]) / (frame["to"] - frame["from"])
    heights = []
    for time in times:
        x, bottom = frame["left"] + (time - frame["from"]) * size, (rank + 1) * frame["row"] - 2
        column = canvas.evaluate(PIXELS, [[x, bottom - k] for k in range(int(frame["row"]) - 2)])
        background = canvas.evaluate(PIXELS, [[frame["left"] - 3, bottom]])[0]
        filled = next(
            (k for k, colour in enumerate(column) if colour in (background, "#000000")), len(column)
        )
        heights.append(filled / (frame["row"] - 4))
    return heights
