"""Chapter 25: how many new rows are still alike, and when a model with them catches up with the old one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from course_lib.models.llama import Llama
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

COLOURS = ("#4a86ba", "#cc6a24", "#222222")


def alike(model: Llama, first: int) -> int:
    """The largest group of equal rows in the output matrix, from the row ``first`` on."""
    rows = model.lm_head.weight.detach()[first:]
    apart = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return int((apart < 1e-4).sum(1).max())


def reaches(losses: Sequence[float], value: float, every: int) -> float:
    """The step at which a falling loss reaches a value, between two that were measured.

    Raises:
        ValueError: it never does.
    """
    for place, (higher, lower) in enumerate(pairwise(losses)):
        if higher > value >= lower:
            return every * (place + (higher - value) / (higher - lower))
    raise ValueError(f"the loss never reaches {value:.2f}")


def plot_catching_up(losses: Mapping[str, Sequence[float]], every: int) -> Picture:
    """Loss over steps, from step 0. A dashed line joins the end of the first curve with the second at that loss.

    Args:
        losses: name -> a value at step 0 and after every ``every`` steps; two or three curves.

    Raises:
        ValueError: more curves than colours, or the second never reaches the end of the first.
    """
    from matplotlib.figure import Figure

    if not 2 <= len(losses) <= len(COLOURS):
        raise ValueError(f"give 2 or {len(COLOURS)} curves, not {len(losses)}")
    figure = Figure(figsize=(WIDTH, 4.0), layout="constrained")
    axis = figure.subplots()
    for (name, values), colour in zip(losses.items(), COLOURS, strict=False):
        axis.plot(range(0, every * len(values), every), values, color=colour, linewidth=2.2, label=name)
    first, second, *_ = losses.values()
    end, level = every * (len(first) - 1), first[-1]
    met = reaches(second, level, every)
    axis.plot([met, end], [level, level], "o--", color="#222222", linewidth=1, markersize=5, clip_on=False)
    said = f"{level:.1f} after {end} steps, and after {round(met, -1):.0f}"
    middle, above = ((met + end) / 2, level), (0, 18)  # points, clear of the curves
    axis.annotate(said, middle, above, textcoords="offset points", ha="center", fontsize=TEXT)
    axis.set(xlim=(0, end), ylim=(level - 0.4, None))
    axis.set_xlabel("step", fontsize=TEXT, loc="right")
    axis.set_ylabel("loss per character", fontsize=TEXT)
    axis.legend(loc="upper right", fontsize=TEXT, frameon=False)
    plain_axes(axis)
    ends = "; ".join(f"{name}: from {values[0]:.1f} to {values[-1]:.1f}" for name, values in losses.items())
    return render(figure, f"Loss per character over {end} steps. {ends}. {said}.")
