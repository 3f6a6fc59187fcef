"""Where numbers lie between a format's largest and smallest: a histogram of their exponents.

A float is a sign, an exponent and some digits. Whether a gradient survives 16 bits is decided by its exponent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, plain_axes

# Told apart by lightness, too: becomes zero or infinite, keeps fewer digits, keeps all its digits.
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
LOST, FEWER, WHOLE = "#cc6a24", "#a9cbe8", "#1b3a5c"


def exponents(tensors: Iterable[Tensor]) -> Counter[int]:
    """How many elements lie in each octave: e counts those with 2^e <= \\|x\\| < 2^(e+1). Zeros do not count."""
    found: Counter[int] = Counter()
    for tensor in tensors:
        values = tensor.detach().float()
        _, exponent = torch.frexp(values[values != 0])  # x = m 2^exponent with 0.5 <= m < 1
        octaves, counts = (exponent - 1).unique(return_counts=True)
        found.update(dict(zip(octaves.tolist(), counts.tolist(), strict=True)))
    return found


def lost(tensors: Iterable[Tensor], dtype: torch.dtype, scale: float = 1.0) -> float:
    """The share, from 0 to 1, of the elements other than zero that ``dtype`` turns into zero or infinity.

    Args:
        scale: what they are multiplied by first.
    """
    every = gone = 0
    for tensor in tensors:
        values = tensor.detach().float()
        values = values[values != 0] * scale
        rounded = values.to(dtype)
        every += values.numel()
        gone += int((rounded == 0).sum() + rounded.isinf().sum())
    return gone / every if every else 0.0


def plot_exponents(
    panels: Mapping[str, Iterable[Tensor]], dtype: torch.dtype = torch.float16, *, alt: str
) -> Picture:
    """Histograms of exponents, one below the other, coloured by what becomes of the numbers in ``dtype``.

    Dotted lines stand where the format changes: half of its smallest number (less becomes zero), its smallest
    with all digits, its largest.

    Args:
        panels: title -> tensors.
        dtype: the format whose limits are drawn.
        alt: the sentence that says what is seen.

    Raises:
        ValueError: a panel has no number but zero.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    counted = {title: exponents(tensors) for title, tensors in panels.items()}
    for title, counts in counted.items():
        if not counts:
            raise ValueError(f"{title!r} has no number other than zero to draw")
    info = torch.finfo(dtype)
    normal, largest = math.frexp(info.smallest_normal)[1] - 1, math.frexp(info.max)[1] - 1
    smallest = normal + int(math.log2(info.eps))  # below it lies half of the smallest number, then zero
    figure = Figure(figsize=(WIDTH, 1.3 + 1.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (title, counts) in zip(axes, counted.items(), strict=True):
        total = sum(counts.values())
        for octave, count in counts.items():
            outside = octave < smallest - 1 or octave > largest
            colour = LOST if outside else FEWER if octave < normal else WHOLE
            axis.bar(octave + 0.5, 100 * count / total, width=0.9, color=colour)
        axis.set_title(title, loc="left", fontsize=TITLE, pad=16 if axis is axes[0] else None)
        for edge in (smallest - 1, normal, largest + 1):
            axis.axvline(edge, color="#222222", linewidth=1, linestyle=":")
        plain_axes(axis)
        axis.tick_params(length=0)
        axis.yaxis.set_major_locator(MaxNLocator(2, integer=True))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    low = min(min(counts) for counts in counted.values())
    # What lies further out than 30 octaves from the format would only make the rest small.
    left = 5 * (max(min(low, smallest - 2), smallest - 30) // 5)
    axes[-1].set_xlim(left, largest + 3)
    axes[-1].set_xticks(range(left, largest + 3, 5))
    axes[-1].set_xlabel("exponent e of a value between 2 to the e and 2 to the e + 1", fontsize=TEXT)
    figure.supylabel("share of the values", fontsize=TEXT)
    name = NAMES.get(dtype, str(dtype).removeprefix("torch."))
    edges = {smallest - 1: "zero below", normal: "smallest with all digits", largest + 1: "largest"}
    for edge, label in edges.items():
        at_end = edge > largest
        axes[0].annotate(
            label,
            (edge, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0 if at_end else 2, 3),
            textcoords="offset points",
            ha="right" if at_end else "left",
            fontsize=TEXT,
        )
    labels = {LOST: f"zero or infinite in {name}", FEWER: "kept, but coarser", WHOLE: "all digits"}
    handles = [Patch(color=colour, label=label) for colour, label in labels.items()]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, fontsize=TEXT, frameon=False)
    return render(figure, alt)
