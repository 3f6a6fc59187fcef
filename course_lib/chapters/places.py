"""Chapter 11: the list of one rank and its places, before and after ``in_order`` sorts it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course_lib.by_hand.pipeline import in_order
from course_lib.observe.show.shown import Shown
from simulator.plots.timeline import COLOURS, KINDS


def show_places(
    place: Callable[[str, int, int], float], m: int = 3, r: int = 0, kinds: Sequence[str] = ("F", "BW")
) -> Shown:
    """What rank ``r`` would do first to last, each action with its place below it; then the same list, sorted."""
    before = in_order(r + 1, m, lambda *_: 0, kinds)[r]
    after = in_order(r + 1, m, place, kinds)[r]
    rows, lines = [], []
    for name, actions in (("the list", before), ("sorted", after)):
        boxes = [(kind, f"{kind}{i}", f"{place(kind, r, i):g}") for kind, _, i in actions]
        rows += [_row(name, [_box(kind, action) for kind, action, _ in boxes])]
        rows += [_row("place", [f'<td style="text-align: center">{at}</td>' for *_, at in boxes])]
        lines.append(f"{name}: " + ", ".join(f"{action} at {at}" for _, action, at in boxes))
    return Shown("\n".join(lines), f"<table>{''.join(rows)}</table>")


def _row(name: str, cells: Sequence[str]) -> str:
    return f'<tr><td style="text-align: left">{name}</td>{"".join(cells)}</tr>'


def _box(kind: str, action: str) -> str:
    colour = COLOURS[KINDS[kind[0]]][0]
    return f'<td style="background: {colour}; color: #222222; text-align: center; width: 3em">{action}</td>'
