"""The drawings of what else ranks share: heads of keys and values, and the loss of a vocabulary that is cut."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import TYPE_CHECKING

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WHOLE = "#e4e4e4"  # what every rank has
OF_RANK = ("#a9cbe8", "#f3c09a", "#b9dcc6", "#d9cdea")
EDGE = {"edgecolor": "#555555", "linewidth": 0.8}


def plot_shared_heads(shares: Sequence[tuple[Sequence[int], int]]) -> Picture:
    """Each rank's query heads, and below them its head of keys and values; a bracket joins ranks with the same one.

    Args:
        shares: for each rank its query heads, and its head of keys and values.

    Raises:
        ValueError: there is nothing to draw, or more ranks than colours.
    """
    _check(shares)
    axis, figure = _empty(2.3)
    wide = [max(len(queries), 1) for queries, _ in shares]
    starts = [sum(wide[:r]) + 0.6 * r for r in range(len(wide))]
    for r, (x, (queries, head)) in enumerate(zip(starts, shares, strict=True)):
        middle = x + wide[r] / 2
        axis.text(middle, 2.55, f"rank {r}", ha="center", va="center", fontsize=TEXT)
        for i, query in enumerate(queries):
            _box(axis, x + i, 1.2, 1, f"Q{query}", OF_RANK[r])
        _box(axis, middle - 0.5, 0, 1, f"KV{head}", OF_RANK[r])
    heads = list(dict.fromkeys(head for _, head in shares))
    for head in heads:
        of = [r for r, (_, own) in enumerate(shares) if own == head]
        left, right = (starts[r] + wide[r] / 2 for r in (of[0], of[-1]))
        axis.plot([left, left, right, right], [-0.12, -0.35, -0.35, -0.12], color="#555555", linewidth=1)
        said = f"an f adds up the gradient of KV{head}" if len(of) > 1 else f"KV{head}"
        axis.text((left + right) / 2, -0.48, said, ha="center", va="top", fontsize=TEXT)
    axis.set(xlim=(-0.9, starts[-1] + wide[-1] + 0.9), ylim=(-1.0, 2.8))
    told = (
        f"rank {r} has query heads {', '.join(map(str, queries))} and head {head} of keys and values"
        for r, (queries, head) in enumerate(shares)
    )
    return render(figure, f"Heads: {'; '.join(told)}.")


def plot_cut_loss(logits: Sequence[float], target: int, sizes: Sequence[int]) -> Picture:
    """The loss of one token, rank by rank: what each has of the logits, what it sends, and what all-reduces make of it.

    Args:
        logits: one for each word.
        target: the word that is right.
        sizes: how many words each rank has.

    Raises:
        ValueError: the sizes are not those of the logits, the target is no word, or there are more ranks than colours.
    """
    _check(sizes)
    if sum(sizes) != len(logits) or min(sizes) < 1 or not 0 <= target < len(logits):
        raise ValueError(f"{sum(sizes)} words on ranks and target {target} do not fit {len(logits)} logits")
    m, ranks, most = max(logits), len(sizes), max(sizes)
    axis, figure = _empty(0.95 + 0.36 * (ranks + 1))
    columns = [
        most + 0.5 + 1.25 * i + 0.45 * (i > 0) for i in range(4)
    ]  # message 2 stands apart from message 1
    heads = ["largest", "Σ eˣ⁻ᵐ", "xₜ − m", "Σ (x − m)"]
    for x, head in zip(columns, heads, strict=True):
        axis.text(x + 0.5, 0.35, head, ha="center", va="center", fontsize=TEXT)
    axis.text(most / 2, 0.35, "logits of its words", ha="center", va="center", fontsize=TEXT)
    for first, last, said in ((0, 0, "message 1: maximum"), (1, 3, "message 2: sums")):
        left, right = columns[first] - 0.02, columns[last] + 1.02
        axis.text((left + right) / 2, 1.15, said, ha="center", va="center", fontsize=TEXT, weight="bold")
        axis.plot((left, right), (0.78, 0.78), color="#555555", linewidth=1)
    total = [m, 0.0, 0.0, 0.0]
    for r, size in enumerate(sizes):
        first, y, colour = sum(sizes[:r]), -r - 0.5, OF_RANK[r]
        axis.text(-0.15, y + 0.02, f"rank {r}", ha="right", va="center", fontsize=TEXT)
        own = logits[first : first + size]
        for i, logit in enumerate(own):
            _box(axis, i, y - 0.42, 0.84, f"{logit:g}", colour, bold=first + i == target)
        here = first <= target < first + size
        sent = [
            max(own),
            sum(exp(x - m) for x in own),
            logits[target] - m if here else 0.0,
            sum(x - m for x in own),
        ]
        total = [m, *(a + b for a, b in zip(total[1:], sent[1:], strict=True))]
        for x, number in zip(columns, sent, strict=True):
            _box(axis, x, y - 0.42, 0.84, _short(number), colour)
    y = -ranks - 0.75
    axis.text(columns[0] - 0.15, y, "then on every rank", ha="right", va="center", fontsize=TEXT)
    for x, number in zip(columns, total, strict=True):
        _box(axis, x, y - 0.42, 0.84, _short(number), WHOLE)
    loss = log(total[1]) - total[2]
    axis.set(xlim=(-1.0, columns[-1] + 1.1), ylim=(y - 0.55, 1.45))
    holder = next(r for r in range(ranks) if target < sum(sizes[: r + 1]))
    return render(
        figure,
        f"The loss of one token on {ranks} ranks. Each sends its largest logit, and the all-reduce makes m = {m:g}. "
        f"Each then sends its sum of powers, the target's logit, which is 0 on all but rank {holder}, and its sum of "
        f"logits; the sums are {', '.join(map(_short, total[1:]))}, and the loss is log {_short(total[1])} − "
        f"({_short(total[2])}) = {_short(loss)}.",
    )


def _check(ranks: Sequence[object]) -> None:
    if not 1 <= len(ranks) <= len(OF_RANK):
        raise ValueError(f"the picture has colours for 1 to {len(OF_RANK)} ranks, not {len(ranks)}")


def _empty(height: float):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axis = figure.subplots()
    axis.set_axis_off()
    axis.set(xticks=[], yticks=[])
    return axis, figure


def _box(axis: Axes, x: float, y: float, height: float, text: str, colour: str, bold: bool = False) -> None:
    from matplotlib.patches import Rectangle

    edge = {"edgecolor": "#000000", "linewidth": 2.2, "zorder": 3} if bold else EDGE
    axis.add_patch(Rectangle((x, y), 1, height, facecolor=colour, **edge))
    axis.text(x + 0.5, y + height / 2, text, ha="center", va="center", fontsize=TEXT, zorder=4)


def _short(number: float) -> str:
    return f"{number:.3g}".replace("-", "−") if abs(number) < 1000 else f"{number:g}"
