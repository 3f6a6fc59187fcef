"""The drawing of a machine's network cards as gates, and of what an all-reduce sends through each (chapter 04)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from course_lib.chapters.four_ways import through_cards
from simulator.inputs.hardware import Link
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, human

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OUT, WITHIN, IDLE = "#cc6a26", "#7d99b3", "#d9d9d9"


def plot_busy_cards(ranks: int, each: int, payload: float, card: Link) -> Picture:
    """The first machine of ``each`` ranks: what leaves it directly, around one ring, and around a ring a card."""
    from matplotlib.figure import Figure

    ways = {"direct": ("direct", 1), "one ring": ("ring", 1), f"{each} rings": ("ring", each)}
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    told = []
    for axis, (name, (way, rings)) in zip(figure.subplots(len(ways), 1), ways.items(), strict=True):
        sizes = [payload * part for part in through_cards(way, ranks, each, rings)]
        busy = 1e3 * max(sizes) / card.rate
        told.append(f"{name}: {human(sum(sizes))} leave the machine, the busiest card takes {busy:.0f} ms")
        drawn = " (drawn: one of them)" if rings > 1 else ""
        axis.set_title(told[-1].replace(":", f"{drawn}:", 1), fontsize=TITLE, loc="left")
        _draw_machine(axis, sizes)
        _draw_inside(axis, each, way, last=each // 2 - 1 if rings > 1 else each - 1)
    through = ", ".join(f"{size / 1e9:.2f}" for size in sizes)
    return render(
        figure,
        f"A machine of {each} of {ranks:,} ranks, each with a card. {'; '.join(told)}, with {through} GB.",
    )


def _draw_machine(axis: Axes, sizes: Sequence[float]) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    each = len(sizes)
    axis.add_patch(
        FancyBboxPatch((-0.5, -0.55), each, 2.05, "round,pad=0.1", fc="#f4f4f4", ec="#8a8a8a", zorder=0)
    )
    for rank, size in enumerate(sizes):
        colour = OUT if size else IDLE
        axis.plot([rank, rank], [0, 1.4], color=colour, linewidth=1.2 if size else 0.8, zorder=1)
        axis.add_patch(Rectangle((rank - 0.3, 1.4), 0.6, 0.4, fc=colour, ec="#8a8a8a", zorder=3))
        if size:
            width = 1 + 3 * size / 2e9
            arrow = {"arrowstyle": "-|>", "color": OUT, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
            axis.annotate("", (rank, 2.6), (rank, 1.8), arrowprops=arrow)
        axis.text(rank + 0.1, 2.15, f" {size / 1e9:.2g} GB" if size else " 0 GB", fontsize=TEXT, va="center")
    axis.plot(range(each), [0] * each, "o", color="#143f70", markersize=6, zorder=4)
    axis.text(each - 0.3, 1.6, "cards", fontsize=TEXT, va="center")
    axis.text(each - 0.3, 0, "ranks", fontsize=TEXT, va="center")
    axis.set(xlim=(-0.8, each + 0.4), ylim=(-0.75, 2.7))
    axis.axis("off")


def _draw_inside(axis: Axes, each: int, way: str, last: int) -> None:
    from matplotlib.patches import FancyArrowPatch

    pairs = [(low, high) for low in range(each) for high in range(low + 1, each)]
    if way == "ring":
        pairs = [(rank, (rank + 1) % each) for rank in range(each) if rank != last]  # an open chain
    for start, end in pairs:
        far = abs(end - start) > 1
        axis.add_patch(
            FancyArrowPatch(
                (start, 0),
                (end, 0),
                connectionstyle=f"arc3,rad={(0.05 if end > start else -0.05) if far else 0}",
                arrowstyle="-" if way == "direct" else "-|>",
                mutation_scale=9,
                shrinkA=4,
                shrinkB=4,
                color=WITHIN,
                linewidth=0.6 if way == "direct" else 1.2,
                zorder=2,
            )
        )
