"""Chapter 12's board: what its questions find in each run."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

FINE, WRONG = "#dcebe1", "#e8a07c"
Finding = tuple[str, bool | None]  # what stands in the field, and whether that is right, if known


def plot_board(findings: Mapping[str, Mapping[str, Finding]]) -> Picture:
    """A board; what is not as it should be is dark, with a cross, and what nobody has judged has no colour.

    Args:
        findings: column -> row -> what was found, and whether it is right. The rows are the same in all columns.

    Raises:
        ValueError: there is no column, or columns differ in their rows.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rows = list(next(iter(findings.values()), ()))
    if not rows or any(list(column) != rows for column in findings.values()):
        raise ValueError("a board needs at least one column, and the same rows in each")
    figure = Figure(figsize=(WIDTH, 0.75 + 0.34 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for x, (title, column) in enumerate(findings.items()):
        axis.text(x + 0.5, -0.15, title, ha="center", va="bottom", fontsize=TEXT)
        for y, (text, right) in enumerate(column.values()):
            colour = "none" if right is None else FINE if right else WRONG
            axis.add_patch(Rectangle((x + 0.02, y + 0.05), 0.96, 0.9, facecolor=colour))
            axis.text(x + 0.5, y + 0.5, _marked(text, right), ha="center", va="center", fontsize=TEXT)
    axis.set_xlim(0, len(findings))
    axis.set_ylim(len(rows), -0.9)
    axis.set_yticks([y + 0.5 for y in range(len(rows))], rows, fontsize=TITLE)
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return render(figure, ". ".join(map(_said, findings.items())) + ".")


def _marked(text: str, right: bool | None) -> str:
    return f"✗ {text}" if right is False else text


def _said(item: tuple[str, Mapping[str, Finding]]) -> str:
    title, column = item
    marks = (f"{row} {text}{' (✗)' if right is False else ''}" for row, (text, right) in column.items())
    return f"{' '.join(title.split())}: " + ", ".join(marks)
