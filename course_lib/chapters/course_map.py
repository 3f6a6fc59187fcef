"""The map of the course: which chapter builds on which, how long each takes, and how far its reader is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import wrap

from course_lib.observe.networks.draw import picture_of
from course_lib.observe.networks.render import Box, Frame, Graph
from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table
from simulator.plots.picture import Picture

BEGUN, COMPLETE = "#eedd88", "#44bb99"


@dataclass(frozen=True)
class Chapter:
    """One chapter.

    Args:
        name: its notebook's, without the number: ``"where_memory_goes"``.
        builds_on: numbers of the chapters that it needs.
        minutes: of reading, without the exercises; 0: it is not written yet.
    """

    name: str
    builds_on: tuple[str, ...] = ()
    minutes: int = 0


CHAPTERS = {
    "00": Chapter("start_here", (), 15),
    "01": Chapter("seeing_networks", ("00",), 30),
    "02": Chapter("anatomy_of_llms", ("01",), 40),
    "03": Chapter("where_memory_goes", ("00",), 35),
    "04": Chapter("collectives", ("00",), 35),
    "05": Chapter("ddp", ("04",), 40),
    "06": Chapter("zero", ("03", "05"), 40),
    "07": Chapter("fsdp", ("06",), 30),
    "08": Chapter("recomputation", ("03",), 40),
    "09": Chapter("tensor_parallel", ("03", "04"), 40),
    "10": Chapter("sequence_parallel", ("08", "09"), 40),
    "11": Chapter("pipeline_parallel", ("03", "04"), 40),
    "12": Chapter("three_dimensions", ("05", "10", "11"), 35),
    "13": Chapter("galaxy", ("10", "11"), 30),
    "14": Chapter("context_parallel", ("04", "15")),
    "15": Chapter("flash_attention", ("02", "08"), 40),
    "16": Chapter("paged_attention", ("02", "15"), 35),
    "17": Chapter("lora_and_adapters", ("02", "03"), 40),
    "18": Chapter("prompt_tuning", ("17",), 35),
    "19": Chapter("gradient_compression", ("05",), 35),
    "20": Chapter("elastic_training", ("06",), 30),
    "21": Chapter("planner", ("12",)),
    "22": Chapter("expert_parallel", ("04", "05")),
    "23": Chapter("finding_the_bug", ("12",)),
    "24": Chapter("low_precision", ("03",)),
}

PATHS = {  # each chapter stands behind those that it builds on
    "one GPU with too little memory": ("03", "08"),
    "a cluster for the first time": ("03", "04", "05", "06", "07", "08"),
    "one model over many devices": ("03", "04", "05", "08", "09", "10", "11", "12", "13", "21"),
    "fine-tuning": ("01", "02", "03", "17", "18"),
    "long sequences": ("01", "02", "03", "04", "08", "15", "14", "16"),
}


def course_map(points: Mapping[str, tuple[int, int]] | None = None) -> Picture | Shown:
    """The chapters that are written, an arrow from each to those that build on it.

    Args:
        points: number of a chapter -> (earned, possible); a chapter with all of them is green, a begun one yellow.
    """
    written = {number: chapter for number, chapter in CHAPTERS.items() if chapter.minutes}
    boxes = []
    for number, chapter in written.items():
        earned, possible = (points or {}).get(number, (0, 0))
        lines = [f"{chapter.minutes} min"]
        colours = {}
        if possible:
            lines.append(f"{earned}/{possible} points")
            if earned:
                colours = {"colours": (COMPLETE if earned == possible else BEGUN,)}
        # Narrow boxes, because many stand in a row; but "recomputation" stays one word.
        title, *more = wrap(f"{number} {chapter.name.replace('_', ' ')}", len("recomputation"))
        boxes.append(Box(number, title, (*more, *lines), **colours))
    edges = [(before, number) for number, chapter in written.items() for before in chapter.builds_on]
    graph = Graph(Frame(inside=boxes), [(tail, head) for tail, head in edges if tail in written])
    needs = [f"{n} builds on {', '.join(c.builds_on)}" for n, c in written.items() if c.builds_on]
    return picture_of(graph, f"The written chapters: {'; '.join(needs)}.")


def course_paths() -> Shown:
    """Which chapters to read for what, and the hours of reading in those that are written."""
    rows = []
    for purpose, numbers in PATHS.items():
        minutes = sum(CHAPTERS[number].minutes for number in numbers)
        names = [number if CHAPTERS[number].minutes else f"({number})" for number in numbers]
        rows.append([purpose, ", ".join(names), f"{minutes / 60:.1f}" if minutes else "not written yet"])
    return table(
        ["purpose", "chapters", "hours of reading"], rows, "Chapters in brackets are not written yet."
    )
