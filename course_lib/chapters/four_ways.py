"""Four ways to give all ranks a sum: who sends how much to whom, and what leaves a machine (chapter 04)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table
from simulator.inputs.checks import at_least, one_of
from simulator.inputs.hardware import Link
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, human

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path

WAYS = ("naive", "tree", "direct", "ring")
DRAWN, GAP = 3, 2.5  # machines in the picture; between two of them, in places of a rank
OUT, WITHIN = "#cc6a26", "#9db4c8"


class Sent(NamedTuple):
    """In tensors.

    Attributes:
        rank: by the rank that sends most.
        machine: out of the machine from which most leaves.
        together: by all ranks.
    """

    rank: float
    machine: float
    together: float


def messages(way: str, ranks: int) -> Iterator[tuple[int, int, float]]:
    """(sender, receiver, tensors that it sends there in all), as in ``course_lib.runtime.collectives``."""
    one_of("way", way, WAYS)
    at_least(2, ranks=ranks)
    if way == "ring":
        yield from ((r, (r + 1) % ranks, 2 * (ranks - 1) / ranks) for r in range(ranks))
    if way == "direct":
        yield from ((r, to, 2 / ranks) for r in range(ranks) for to in range(ranks) if to != r)
    distance = 1
    while distance < ranks and way in ("naive", "tree"):
        for low in range(1 if way == "naive" else min(distance, ranks - distance)):
            yield low + distance, low, 1  # an addend, towards the root
            yield low, low + distance, 1  # the sum, back
        distance = distance + 1 if way == "naive" else 2 * distance


def sent(way: str, ranks: int, each: int) -> Sent:
    """What an all-reduce sends; ``each`` ranks stand in a machine, in their order."""
    at_least(1, each=each)
    by_rank, out = defaultdict[int, float](float), defaultdict[int, float](float)
    for sender, receiver, part in messages(way, ranks):
        by_rank[sender] += part
        if sender // each != receiver // each:
            out[sender // each] += part
    return Sent(max(by_rank.values()), max(out.values(), default=0), sum(by_rank.values()))


def compare_ways(ranks: int, payload: float) -> Shown:
    """A row for each way: the GB that the busiest rank and all ranks send."""
    rows = []
    for way in WAYS:
        found = sent(way, ranks, 1)
        rows.append([way, *(f"{round(x * payload / 1e9, 1):,g}" for x in (found.rank, found.together))])
    return table(["", "busiest rank (GB)", "all ranks (GB)"], rows)


def plot_leaving(ranks: int, each: int, payload: float, card: Link) -> Picture:
    """What leaves the first machine through its one card, sent directly and around a ring, and how long it takes.

    The first machines are drawn.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch
    from matplotlib.path import Path

    at_least(DRAWN * each, ranks=ranks)
    heights = {"direct": 7.4, "ring": 3.5}
    figure = Figure(figsize=(WIDTH, 4), layout="constrained")
    axes = figure.subplots(2, 1, height_ratios=[2 + height for height in heights.values()])
    told = []
    for axis, (way, height) in zip(axes, heights.items(), strict=True):
        size = payload * sent(way, ranks, each).machine
        told.append(
            f"{way}: {human(size)} leave machine 0, its card is busy for {1e3 * size / card.rate:.0f} ms"
        )
        axis.set_title(told[-1], fontsize=TITLE, loc="left")
        for machine in range(DRAWN):
            left = _place(machine * each, each)
            axis.add_patch(
                FancyBboxPatch(
                    (left - 0.6, -0.6), each + 0.2, 1.2, "round,pad=0.1", fc="#f2f2f2", ec="#8a8a8a"
                )
            )
            axis.text(left + (each - 1) / 2, -1.6, f"machine {machine}", fontsize=TEXT, ha="center")
        for low, high in _drawn(way, each):
            out = low < each <= high
            width = (2.2 if way == "ring" else 0.6) if out else 0.8
            head = "-|>" if way == "ring" else "-"
            _arc(axis, _place(low, each), _place(high, each), OUT if out else WITHIN, width, head)
        places = [_place(rank, each) for rank in range(DRAWN * each)]
        axis.plot(places, [0] * len(places), "o", color="#143f70", markersize=5)
        axis.text(places[-1] + 1.6, 0, "…", fontsize=TITLE, va="center")
        if way == "ring":
            closing = [(places[-1] + 1.9, 0.4), (places[-1] + 1.9, 2.3), (places[0], 2.3), (places[0], 0.3)]
            _arrow(axis, Path(closing), WITHIN, 0.8)
            axis.text(places[-1] / 2, 2.55, f"rank {ranks - 1:,} sends to rank 0", fontsize=TEXT, ha="center")
        axis.set(xlim=(-1.2, places[-1] + 2.6), ylim=(-2.1, height))
        axis.axis("off")
    return render(figure, f"Machines of {each} of {ranks:,} ranks, and their messages. {'; '.join(told)}.")


def _place(rank: int, each: int) -> float:
    return rank + GAP * (rank // each)


def _drawn(way: str, each: int) -> Iterator[tuple[int, int]]:
    """The messages to the right that begin in the first machine; of a ring, those of all that are drawn."""
    last = DRAWN * each
    if way == "ring":
        yield from ((rank, rank + 1) for rank in range(last - 1))
        return
    yield from ((low, high) for low in range(each) for high in range(low + 1, last))


def _arc(axis: Axes, start: float, end: float, colour: str, width: float, head: str) -> None:
    from matplotlib.path import Path

    rise = 0.45 * (end - start) + 1.6
    curve = Path(
        [(start, 0.3), ((start + end) / 2, rise), (end, 0.3)], [Path.MOVETO, Path.CURVE3, Path.CURVE3]
    )
    _arrow(axis, curve, colour, width, head)


def _arrow(axis: Axes, path: Path, colour: str, width: float, head: str = "-|>") -> None:
    from matplotlib.patches import FancyArrowPatch

    axis.add_patch(
        FancyArrowPatch(
            path=path,
            arrowstyle=head,
            mutation_scale=8,
            color=colour,
            linewidth=width,
            zorder=2 if colour == OUT else 1,
        )
    )
