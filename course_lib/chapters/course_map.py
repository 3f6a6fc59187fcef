"""The map of the course: its chapters, which builds on which, and five lanes through them for those who want one thing.

What a reader sees of it comes from here: the map of chapter 00 and of the site, the tables of the README, and the
footer of every chapter. ``python -m course_lib.chapters.footer`` writes the last two anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from course_lib.observe.show.shown import Shown


@dataclass(frozen=True)
class Chapter:
    """One chapter.

    Args:
        name: its notebook's, without the number: ``"where_memory_goes"``.
        builds_on: numbers of the chapters that it needs.
        minutes: of reading, without the exercises; 0: it is not written yet.
        short: its title, where that is not the name.
    """

    name: str
    builds_on: tuple[str, ...] = ()
    minutes: int = 0
    short: str = ""

    @property
    def title(self) -> str:
        return self.short or self.name.replace("_", " ")


CHAPTERS = {
    "00": Chapter("start_here", (), 23),
    "01": Chapter("seeing_networks", ("00",), 28),
    "25": Chapter("text_and_tasks", ("00",), 27, "tokens and new words"),
    "02": Chapter("anatomy_of_llms", ("00",), 41, "anatomy of LLMs"),
    "03": Chapter("where_memory_goes", ("00",), 48),
    "04": Chapter("collectives", ("00",), 32),
    "05": Chapter("ddp", ("04",), 40, "data parallelism"),
    "06": Chapter("zero", ("03", "05"), 37, "ZeRO"),
    "07": Chapter("fsdp", ("06",), 50, "FSDP"),
    "08": Chapter("recomputation", ("03",), 26),
    "09": Chapter("tensor_parallel", ("03", "04", "07"), 38, "tensor parallelism"),
    "10": Chapter("sequence_parallel", ("08", "09"), 38, "sequence parallelism"),
    "11": Chapter("pipeline_parallel", ("03", "04", "07"), 45, "pipeline parallelism"),
    "12": Chapter("three_dimensions", ("05", "09", "11"), 31),
    "13": Chapter("galaxy", ("09", "10"), 28, "Galaxy"),
    "14": Chapter("context_parallel", ("04", "15"), 0, "context parallelism"),
    "15": Chapter("flash_attention", ("02", "08"), 42, "FlashAttention"),
    "16": Chapter("paged_attention", ("02", "15"), 42),
    "17": Chapter("lora_and_adapters", ("02", "03"), 37, "LoRA and adapters"),
    "18": Chapter("prompt_tuning", ("17",), 28),
    "19": Chapter("gradient_compression", ("05",), 34),
    "20": Chapter("elastic_training", ("04", "05"), 39),
    "21": Chapter("planner", ("12",)),
    "22": Chapter("expert_parallel", ("04", "05"), 0, "expert parallelism"),
    "23": Chapter("finding_the_bug", ("12",)),
    "24": Chapter("low_precision", ("03",)),
}
FIRST = "03"  # what a reader of chapter 00 reads next who names no lane

LANES = {
    "one GPU and not enough memory": ("03", "08", "17"),
    "a cluster for the first time": ("03", "04", "05", "06", "07", "08"),
    "one model over many devices": ("04", "09", "10", "11", "12", "13", "14", "21"),
    "fine-tuning": ("25", "02", "03", "17", "18"),
    "attention": ("02", "15", "16"),
}
# Paul Tol's "light" scheme: told apart by colour-blind readers, and light enough to print black text on.
COLOURS = dict(zip(LANES, ("#ee8866", "#77aadd", "#44bb99", "#eedd88", "#ffaabb"), strict=True))
BESIDE, GREY = "beside the lanes", "#dddddd"


def written(numbers: Sequence[str]) -> list[str]:
    """Those of these chapters that can be read."""
    return [number for number in numbers if CHAPTERS[number].minutes]


def leans_on(lane: str) -> list[str]:
    """Chapters outside a lane on which its chapters build; a reader looks there when something is missing."""
    needed = {before for number in written(LANES[lane]) for before in CHAPTERS[number].builds_on}
    return sorted(needed - {"00", *LANES[lane]})


def beside_the_lanes() -> list[str]:
    """Written chapters that are in no lane, without this course's first page."""
    return written([n for n in CHAPTERS if n != "00" and not any(n in lane for lane in LANES.values())])


def duration(numbers: Sequence[str]) -> str:
    """How long these chapters take to read: ``"2 h 35 min"``."""
    hours, minutes = divmod(sum(CHAPTERS[number].minutes for number in numbers), 60)
    return f"{hours} h {minutes} min"


def notebook_of(number: str) -> str:
    """``"05"`` -> ``"05_ddp.ipynb"``."""
    return f"{number}_{CHAPTERS[number].name}.ipynb"


def exercises_of(number: str) -> str:
    """``"05"`` -> ``"05_exercises_ddp.ipynb"``."""
    return f"{number}_exercises_{CHAPTERS[number].name}.ipynb"


def course_map(
    points: Mapping[str, tuple[int, int]] | None = None, link: Callable[[str], str] = notebook_of
) -> Shown:
    """The lanes, each with its chapters in reading order, as links.

    Args:
        points: number of a chapter -> (earned, possible). A begun chapter shows them, a complete one is filled.
        link: where a chapter is, from the page that shows the map.
    """
    rows, lines = [], []
    for lane in (*LANES, BESIDE):
        numbers = written(LANES.get(lane, ())) or beside_the_lanes()
        more = leans_on(lane) if lane in LANES else []
        colour = COLOURS.get(lane, GREY)
        boxes = " ".join(_box(n, colour, link(n), *(points or {}).get(n, (0, 0))) for n in numbers)
        if more:
            links = ", ".join(f'<a href="{link(n)}">{n}</a>' for n in more)
            boxes += f' <span style="white-space: nowrap">(leans on {links})</span>'
        name = f'<b>{lane}</b><br><span style="font-size: 12px">{duration(numbers)}</span>'
        style = f"background: {colour}; color: #222222; text-align: left; width: 130px"
        cells = f'<td style="{style}">{name}</td><td style="text-align: left">{boxes}</td>'
        rows.append(f"<tr>{cells}</tr>")
        words = ", ".join(f"{n} {CHAPTERS[n].title}" for n in numbers)
        lines.append(f"{lane} ({duration(numbers)}): {words}")
    table = f'<table style="width: 100%; font-size: 13px">{"".join(rows)}</table>'
    return Shown("\n".join(lines), table)


def _box(number: str, colour: str, target: str, earned: int, possible: int) -> str:
    """One chapter: a link, with the points if there are any."""
    complete = possible > 0 and earned == possible
    told = f" · {'✓' if complete else f'{earned}/{possible}'}" if earned else ""
    style = (
        f"display: inline-block; margin: 2px; padding: 2px 6px; border: 2px solid {colour}; border-radius: 6px; "
        f"background: {colour if complete else '#ffffff'}; color: #222222; text-decoration: none"
    )
    return f'<a href="{target}" style="{style}"><b>{number}</b> {CHAPTERS[number].title}{told}</a>'
