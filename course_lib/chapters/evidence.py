"""What chapter 12's three tools find: a board with a row for each run, and the gradient norms of single parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, plain_axes

FINE, WRONG = "#dcebe1", "#e8a07c"
Finding = tuple[str, bool]  # what stands in the field, and whether it is as it should be


def plot_board(findings: Mapping[str, Mapping[str, Finding]]) -> Picture:
    """A board: a row for each run, a column for each tool; what is not as it should be is dark, with a cross.

    Args:
        findings: column -> run -> what was found, and whether it is right; the runs are the same in all columns.

    Raises:
        ValueError: there is no column, or columns differ in their runs.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    runs = list(next(iter(findings.values()), ()))
    if not runs or any(list(column) != runs for column in findings.values()):
        raise ValueError("a board needs at least one column, and the same runs in each")
    figure = Figure(figsize=(WIDTH, 0.75 + 0.34 * len(runs)), layout="constrained")
    axis = figure.subplots()
    for x, (title, column) in enumerate(findings.items()):
        axis.text(x + 0.5, -0.15, title, ha="center", va="bottom", fontsize=TEXT)
        for y, (text, right) in enumerate(column.values()):
            axis.add_patch(Rectangle((x + 0.02, y + 0.05), 0.96, 0.9, facecolor=FINE if right else WRONG))
            axis.text(
                x + 0.5, y + 0.5, text if right else f"✗ {text}", ha="center", va="center", fontsize=TEXT
            )
    axis.set_xlim(0, len(findings))
    axis.set_ylim(len(runs), -0.9)
    axis.set_yticks([y + 0.5 for y in range(len(runs))], [f"run {run}" for run in runs], fontsize=TITLE)
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return render(figure, ". ".join(map(_said, findings.items())) + ".")


def _said(item: tuple[str, Mapping[str, Finding]]) -> str:
    title, column = item
    marks = (f"run {run} {text}{'' if right else ' (wrong)'}" for run, (text, right) in column.items())
    return f"{' '.join(title.split())}: " + ", ".join(marks)


def plot_ratios(panels: Mapping[str, Sequence[float]], names: Sequence[str]) -> Picture:
    """Panels side by side: for each parameter a point, its gradient norm as a multiple of one device's.

    Args:
        panels: title -> one ratio for each of ``names``.

    Raises:
        ValueError: nothing to draw, or a panel with another number of ratios.
    """
    from matplotlib.figure import Figure

    if not panels or any(len(ratios) != len(names) for ratios in panels.values()):
        raise ValueError(f"each panel needs {len(names)} ratios, one for each parameter")
    figure = Figure(figsize=(WIDTH, 0.9 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    rows = range(len(names))
    for axis, (title, ratios) in zip(axes, panels.items(), strict=True):
        axis.axvline(1, color="#8a8a8a", linewidth=1)
        axis.hlines(rows, 1, ratios, color="#cc6a24", linewidth=2)
        axis.plot(ratios, rows, "o", color="#1b3a5c", markersize=6)
        axis.set_title(title, loc="left", fontsize=TITLE)
        axis.margins(x=0.12, y=0.1)
        plain_axes(axis)
    axes[0].set_yticks(rows, names, fontsize=TEXT)
    axes[0].invert_yaxis()
    figure.supxlabel("gradient norm at step 1, as a multiple of one device's", fontsize=TEXT)
    said = (
        f"{title}: " + ", ".join(f"{n} {r:.2f}" for n, r in zip(names, ratios, strict=True))
        for title, ratios in panels.items()
    )
    return render(figure, "Gradient norms beside one device. " + ". ".join(said) + ".")
