"""The comparison as a chapter shows it: pictures of the lines that ``kept.kept_lines`` returns."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.comparison.finetuning.methods import PROBE
from course_lib.comparison.finetuning.results import Line, title_of
from course_lib.comparison.labels import place_labels
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

# Told apart by the marker, too.
FAMILIES = {  # name in the legend: colour, marker, what its methods' names begin with
    "all parameters": ("#222222", "s", ("full",)),
    "nothing below the classifier": ("#8a8a8a", "D", (PROBE, "head")),
    "biases": ("#7d5ba6", "v", ("bias",)),
    "LoRA of rank r, all six matrices": ("#143f70", "o", ("lora-all",)),
    "LoRA of rank r, query and value": ("#4a86ba", "o", ("lora-qv",)),
    "adapters": ("#23614a", "^", ("adapter",)),
    "side network": ("#e0a030", "P", ("side",)),
    "prompts and prefixes": ("#cc6a24", "X", ("prompt", "p-tuning", "prefix", "llama-adapter")),
}


def family_of(method: str) -> str:
    return next(name for name, (_, _, begins) in FAMILIES.items() if method.startswith(begins))


def short_title(method: str) -> str:
    """``"r 8"`` for LoRA, whose family stands in the legend; else the table's title."""
    return f"r {method.rpartition('-r')[2]}" if method.startswith("lora") else title_of(method)


def accuracy_picture(lines: Sequence[Line], alt: str | None = None) -> Picture:
    """Test accuracy over trained parameters, a mark for each method; a bar is the spread over seeds.

    Raises:
        ValueError: there is no line.
    """
    from matplotlib.figure import Figure

    if not lines:
        raise ValueError("there is nothing to draw: give at least one line")
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    axis = figure.subplots()
    for name, (colour, marker, _) in FAMILIES.items():
        own = sorted(
            (line for line in lines if family_of(line.method) == name), key=lambda line: line.trainable
        )
        if not own:
            continue
        x, y = [line.trainable for line in own], [100 * line.test for line in own]
        spread = [100 * (line.spread or 0) for line in own]
        look = {"color": colour, "marker": marker, "markersize": 7, "label": name}
        look |= {"linestyle": "-" if name.startswith("LoRA") else "", "linewidth": 1}
        if name == "adapters":  # a mark of LoRA in the same place is seen inside
            look |= {"markersize": 13, "fillstyle": "none"}
        axis.errorbar(x, y, spread, **look)
    axis.set_xscale("log")
    low, high = min(line.trainable for line in lines), max(line.trainable for line in lines)
    axis.set_xlim(low / 2, high * 4)
    axis.margins(y=0.12)
    axis.xaxis.set_major_formatter(lambda value, _: _short(value))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    axis.set_xlabel("trained parameters", fontsize=TEXT)
    axis.set_ylabel("accuracy on the test part", fontsize=TEXT)
    plain_axes(axis)
    figure.legend(loc="outside lower center", ncols=2, fontsize=TEXT, frameon=False)
    sides = {"LoRA of rank r, all six matrices": 1, "LoRA of rank r, query and value": -1, "adapters": 1}
    points = [(short_title(line.method), line.trainable, 100 * line.test) for line in lines]
    place_labels(axis, points, [sides.get(family_of(line.method), 0) for line in lines])
    return render(figure, alt or "Accuracy on the test part over trained parameters: " + _said(lines))


def _said(lines: Sequence[Line]) -> str:
    by_accuracy = sorted(lines, key=lambda line: -line.test)
    return ", ".join(f"{x.title} {100 * x.test:.1f} % with {x.trainable:,}" for x in by_accuracy) + "."


def _short(value: float) -> str:
    """``"100"``, ``"10k"``, ``"1M"``."""
    size, letter = next((s, n) for s, n in ((1e6, "M"), (1e3, "k"), (1, "")) if value >= s or s == 1)
    return f"{value / size:g}{letter}"
