"""What chapter 12's questions find: a board with a row for each run, and the norm of each parameter."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

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


def plot_ratios(ratios: Mapping[str, Mapping[str, float]], near: float = 1e-3) -> Picture:
    """A row for each run, a point for each parameter: its gradient's norm, divided by that on one device.

    Args:
        ratios: run -> parameter -> ratio.
        near: a ratio so close to 1 is right, and its point is pale.

    Raises:
        ValueError: a run has no parameter, or there is no run.
    """
    from matplotlib.figure import Figure

    if not ratios or not all(ratios.values()):
        raise ValueError("there is nothing to draw: give at least one run, each with at least one parameter")
    figure = Figure(figsize=(WIDTH, 0.8 + 0.42 * len(ratios)), layout="constrained")
    axis, told = figure.subplots(), []
    axis.axvline(1, color="#8a8a8a", linewidth=1)
    for row, (run, of_run) in enumerate(ratios.items()):
        wrong = [ratio for ratio in of_run.values() if abs(ratio - 1) > near]
        right = len(of_run) - len(wrong)
        axis.plot([1] * right, [row] * right, "o", color="#9ebfab", markersize=9)
        axis.plot(wrong, [row] * len(wrong), "o", color="#cc6a24", markersize=9, alpha=0.6, markeredgewidth=0)
        told.append(f"{run}: {len(wrong)} of {len(of_run)} wrong")
    axis.set_yticks(range(len(told)), told, fontsize=TEXT)
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(len(told) - 0.4, -0.6)
    axis.set_xlabel("gradient norm of each parameter ÷ one device's", fontsize=TEXT, loc="right")
    axis.spines[["top", "right", "left"]].set_visible(False)
    return render(figure, "Gradient norms, parameter by parameter. " + "; ".join(told) + ".")


def _said(item: tuple[str, Mapping[str, Finding]]) -> str:
    title, column = item
    marks = (f"run {run} {text}{'' if right else ' (wrong)'}" for run, (text, right) in column.items())
    return f"{' '.join(title.split())}: " + ", ".join(marks)
