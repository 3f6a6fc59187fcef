"""Heads of queries over the KV heads that they share, judged and drawn; the room of a cache, and what it is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, TITLE, WIDTH, bare
from simulator.predict.kv_cache import kv_cache_bytes_per_token

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEYS, QUERIES, WRONG = PARTS[0], PARTS[1], "#b3261e"
SIZES = {"layers", "kv_heads", "d", "weights_gb"}


def judge_share(
    share: Callable[[torch.Tensor, int], torch.Tensor], heads: int = 8, count: int = 2
) -> Picture:
    """What a learner's ``share`` gives to each head of queries; PyTorch's own attention says which results are right.

    Raises:
        ValueError: it does not give ``heads`` heads.
    """
    from matplotlib.figure import Figure

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, 5, 32, generator=generator) for n in (heads, count, count))
    keys, values = (share(x.clone(), heads) for x in (k, v))
    for given in (keys, values):
        if not isinstance(given, torch.Tensor):
            raise ValueError(f"share gives {type(given).__name__}; a tensor is needed")
        if given.shape != q.shape:
            raise ValueError(f"share gives {tuple(given.shape)}; {heads} heads need {tuple(q.shape)}")
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    mine = F.scaled_dot_product_attention(q, keys.float(), values.float(), is_causal=True)
    right = [torch.allclose(a, b, atol=1e-4) for a, b in zip(mine, theirs, strict=True)]
    used = [min(range(count), key=lambda j: float((row - k[j]).norm())) for row in keys]
    figure = Figure(figsize=(WIDTH, 1.35), layout="constrained")
    axis = figure.subplots()
    _draw(axis, used, count, right)
    title = f"like PyTorch's attention: {sum(right)} of {heads} heads of queries"
    axis.set_title(title, fontsize=TITLE, loc="left")
    wrong = ", ".join(str(i) for i, good in enumerate(right) if not good)
    return render(figure, f"{title}.{f' Wrong: {wrong}.' * bool(wrong)}")


def _draw(axis: Axes, used: Sequence[int], count: int, right: Sequence[bool]) -> None:
    """Queries above, KV heads below, each in the middle of the heads that should use it; wrong lines are red."""
    heads = len(used)
    places = [(j + 0.5) * heads / count - 0.5 for j in range(count)]
    for i, j in enumerate(used):
        line = {"color": "#999999", "lw": 1} if right[i] else {"color": WRONG, "lw": 1.4, "ls": "--"}
        axis.plot([i, places[j]], [1, 0], zorder=1, **line)
    for row, at, colour in ((1, range(heads), QUERIES), (0, places, KEYS)):
        axis.scatter(at, [row] * len(at), s=15**2, marker="s", color=colour, zorder=2)
        for number, place in enumerate(at):
            axis.annotate(
                str(number), (place, row), ha="center", va="center_baseline", color="white", fontsize=TEXT
            )
    axis.set_yticks([1, 0], ["queries", "keys, values"])
    axis.set(xlim=(-0.7, heads - 0.3), ylim=(-0.45, 1.45), xticks=[])
    bare(axis)
    axis.spines["bottom"].set_visible(False)


def plot_rates(models: Mapping[str, Mapping[str, float]]) -> Picture:
    """Tokens a second over the number of sequences that are written at once, up to as many as fit.

    The longer one of reading and computing counts; a dashed line goes on where reading alone would count.

    Args:
        models: name -> weights, cache and computing (ms to read the weights once, to read the cache of a sequence,
            and to compute a token), and fit (sequences).

    Raises:
        ValueError: there is no model, or no sequence of one fits.
    """
    from matplotlib.figure import Figure

    if not models:
        raise ValueError("give one or more models")
    if full := [name for name, ms in models.items() if ms["fit"] < 1]:
        raise ValueError(f"{', '.join(full)}: no sequence fits beside the weights")
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    axis, said = figure.subplots(), []
    for (name, ms), colour in zip(models.items(), PARTS, strict=False):
        fit = int(ms["fit"])
        knee = ms["weights"] / gain if (gain := ms["computing"] - ms["cache"]) > 0 else fit + 1
        counts = [fit ** (i / 200) for i in range(201)]
        reads = [ms["weights"] + n * ms["cache"] for n in counts]
        axis.plot(
            counts, [1e3 * n / read for n, read in zip(counts, reads, strict=True)], "--", color=colour, lw=1
        )
        rates = [1e3 * n / max(read, n * ms["computing"]) for n, read in zip(counts, reads, strict=True)]
        axis.plot(counts, rates, color=colour, lw=2.5)
        axis.plot(fit, rates[-1], "o", color=colour)
        times = f"reading {reads[-1]:.0f} ms, computing {fit * ms['computing']:.2g} ms"
        parts = [name, f"{fit:,} sequences", f"{rates[-1]:,.0f} tokens a second", times]
        side, shift = ("right", 0) if knee <= fit else ("left", 8)  # below the flat part, or behind the end
        axis.annotate(
            "\n".join(parts),
            (fit, rates[-1]),
            (shift, -8 if knee <= fit else 4),
            textcoords="offset points",
            ha=side,
            va="top",
            fontsize=TEXT,
            color=colour,
        )
        said.append(", ".join(parts))
        if knee <= fit:
            text = f"from {knee:,.0f} sequences on\ncomputing takes longer"
            axis.plot(knee, 1e3 / ms["computing"], "o", color=WRONG)
            place = (knee, 1e3 / ms["computing"])
            axis.annotate(
                text, place, (-8, 6), textcoords="offset points", ha="right", fontsize=TEXT, color=WRONG
            )
            said.append(text.replace("\n", " "))
    axis.set(xscale="log", yscale="log")
    axis.margins(y=0.2)  # room for the words above a curve
    for which in (axis.xaxis, axis.yaxis):
        which.set_major_formatter(lambda amount, _: f"{amount:,.0f}")
    axis.minorticks_off()
    axis.tick_params(labelsize=TEXT)
    axis.set_xlabel("sequences at once", fontsize=TEXT)
    axis.set_title("tokens a second (dashed: if only reading took time)", fontsize=TITLE, loc="left")
    return render(figure, f"Tokens a second over sequences. {'; '.join(said)}.")


def plot_rooms(models: Mapping[str, Mapping[str, float]], tokens: int = 2048, gpu_gb: float = 80) -> Picture:
    """For each model a GPU's memory, filled with its weights and with the caches of as many sequences as fit.

    Args:
        models: name -> layers, kv_heads, d (numbers of a head) and weights_gb.
        tokens: of each sequence.

    Raises:
        ValueError: there is no model, a size is missing, or one is not above 0.
    """
    from matplotlib.figure import Figure

    if not models or any(set(model) != SIZES for model in models.values()):
        raise ValueError(f"give one or more models, each with {', '.join(sorted(SIZES))}")
    if min(tokens, gpu_gb, *(size for model in models.values() for size in model.values())) <= 0:
        raise ValueError("layers, KV heads, d, tokens, and the GB of the weights and of the GPU are above 0")
    figure = Figure(figsize=(WIDTH, 0.45 + 0.65 * len(models)), layout="constrained")
    axis, said = figure.subplots(), []
    for row, (name, model) in enumerate(models.items()):
        weights, shape = model["weights_gb"], [int(model[size]) for size in ("layers", "kv_heads", "d")]
        one = tokens * kv_cache_bytes_per_token(*shape) / 1e9  # GB of a sequence
        count = max(0, int((gpu_gb - weights) / one))
        title = f"{name}: {count:,} sequences of {tokens:,} tokens"
        if weights > gpu_gb:
            title = f"{name}: weights of {weights:g} GB do not fit into {gpu_gb:g} GB"
        axis.barh(row, min(weights, gpu_gb), 0.42, color=PARTS[1])
        axis.barh(row, count * one, 0.42, left=weights, color=PARTS[2])
        if count <= 150:  # each sequence can be seen
            cuts = [weights + i * one for i in range(1, count)]
            axis.vlines(cuts, row - 0.21, row + 0.21, color="white", lw=1.2)
        axis.barh(row, gpu_gb, 0.42, facecolor="none", edgecolor="#444444")
        middle = {"ha": "center", "va": "center", "fontsize": TEXT}
        axis.text(min(weights, gpu_gb) / 2, row, "weights", color="white", **middle)
        if count:
            box = {"facecolor": PARTS[2], "edgecolor": "none", "pad": 2}
            axis.text(weights + count * one / 2, row, "caches", bbox=box, **middle)
        axis.text(0, row - 0.4, title, fontsize=TITLE, va="center")
        said.append(title)
    axis.set(xlim=(0, gpu_gb * 1.02), ylim=(len(models) - 0.7, -0.6))
    axis.set(yticks=[], xticks=[0, gpu_gb / 2, gpu_gb])
    axis.set_xlabel("GB of the GPU", fontsize=TEXT)
    bare(axis)
    return render(figure, f"Bars of {gpu_gb:g} GB with the weights and the caches. {'; '.join(said)}.")
