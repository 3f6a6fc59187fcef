"""Chapter 02's cache: one new query that meets the kept keys and values, drawn, and a learner's cache judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, TITLE, WIDTH, bare

KEYS, QUERIES = PARTS[0], PARTS[1]
RIGHT, WRONG = "#23614a", "#b3261e"
TOKENS, HEADS, D = 6, 2, 32

Cache = tuple[Tensor, Tensor]


def plot_new_query(
    panels: Mapping[str, Sequence[float]],
    kept: Sequence[bool] | None = None,
    said: str = "",
    right: Sequence[bool] = (),
    query: int = 0,
) -> Picture:
    """For each panel a token's query, with a line to each key, as thick as the weight that it puts on it.

    Args:
        panels: title -> the weight of each token, between 0 and 1.
        kept: whether a token's key is there; by default all are.
        said: a sentence before the weights in the text that says what is seen.
        right: of each token whether its result is right; then all queries are drawn, green or red.
        query: the number of the token whose query has the lines; by default the last.

    Raises:
        ValueError: there is nothing to draw.
    """
    from matplotlib.figure import Figure

    if not panels or not all(len(weights) for weights in panels.values()):
        raise ValueError("give one or more panels, each with a weight for each token")
    figure = Figure(figsize=(WIDTH, 1.45 * len(panels)), layout="constrained")
    alts = []
    for axis, (title, weights) in zip(
        figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels.items(), strict=True
    ):
        last, of = len(weights), query or len(weights)
        for place, weight in enumerate(weights, 1):
            there = kept is None or kept[place - 1]
            if weight >= 0.005:
                axis.plot([of, place], [1, 0.3], color="#999999", lw=1 + 7 * weight, zorder=1)
            look = {"color": KEYS} if there else {"facecolor": "white", "edgecolor": "#666666", "ls": "--"}
            axis.scatter([place], [0], s=16**2, marker="s", zorder=2, **look)
            middle = {"ha": "center", "va": "center_baseline", "fontsize": TEXT, "zorder": 3}
            axis.text(place, 0, str(place), color="white" if there else "#444444", **middle)
            axis.text(place, -0.62, f"{100 * weight:.0f} %" if there else "none", **middle)
        for place in range(1, last + 1) if right else (of,):
            colour = (RIGHT if right[place - 1] else WRONG) if right else QUERIES
            axis.scatter([place], [1], s=16**2, marker="s", color=colour, zorder=2)
            axis.text(place, 1, str(place), color="white", **middle)
        axis.set_title(title, fontsize=TITLE, loc="left")
        rows = ["queries" if right else "query", "keys, values", f"weight for {of}" if right else "weight"]
        axis.set_yticks([1, 0, -0.62], rows)
        axis.set(xlim=(0.5, last + 0.5), ylim=(-0.9, 1.4), xticks=[])
        bare(axis)
        axis.spines["bottom"].set_visible(False)
        amounts = ", ".join(f"{100 * weight:.0f} %" for weight in weights)
        alts.append(f"{title}: the query of token {of} puts {amounts} on keys 1 to {last}")
    return render(figure, f"{said}{'; '.join(alts)}.")


def judge_cache(step: Callable[[Tensor, Mapping[str, Tensor], Cache], tuple[Tensor, Cache]]) -> Picture:
    """A learner's results of six tokens, in calls of three, two and one, beside PyTorch's of all at once.

    Args:
        step: step(x, W, kept) of the new tokens: their results, and the kept keys and values, (heads, tokens, d).

    Raises:
        ValueError: a result or what it keeps has the wrong shape.
    """
    draw = torch.Generator().manual_seed(1)
    # The values of head 1 are ones in a token's own place, so its results are the weights of the tokens.
    x = torch.cat([torch.randn(TOKENS, D, generator=draw), torch.eye(TOKENS, D)], -1)
    W = {name: torch.randn(2 * D, 2 * D, generator=draw) / D**0.5 for name in "qk"}
    W |= dict.fromkeys("vo", torch.eye(2 * D))
    q, k, v = ((x @ W[name].T).unflatten(-1, (HEADS, D)).transpose(0, 1) for name in "qkv")
    right = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)
    results, caches, kept = [], [], (k[:, :0], v[:, :0])
    for new in x.split([3, 2, 1]):
        result, kept = step(new.clone(), W, kept)
        if not isinstance(result, Tensor) or result.shape != new.shape:
            raise ValueError(f"step gives {_shape(result)}; the result has the shape of x, {_shape(new)}")
        if any(not isinstance(one, Tensor) or one.dim() != 3 or one.shape[::2] != (HEADS, D) for one in kept):
            wanted = f"({HEADS}, tokens, {D})"
            raise ValueError(f"step keeps {', '.join(map(_shape, kept))}; keys and values are {wanted}")
        results += result
        caches += [kept[0][0]] * len(new)
    good = [torch.allclose(a, b, atol=1e-4) for a, b in zip(results, right, strict=True)]
    # The first wrong query is drawn, with its cache.
    first = [*good[:-1], False].index(False)
    come = 3 if first < 3 else 5 if first < 5 else TOKENS  # keys so far; none is missing of those to come
    there = [
        i >= come or any(torch.allclose(one, key, atol=1e-4) for one in caches[first])
        for i, key in enumerate(k[0])
    ]
    title = f"right results: {sum(good)} of {TOKENS}"
    missing = ", ".join(str(i) for i, found in enumerate(there, 1) if not found)
    said = f"Not in the cache: {missing}. " if missing else ""
    return plot_new_query({title: results[first][D : D + TOKENS].tolist()}, there, said, good, first + 1)


def _shape(given: object) -> str:
    return str(tuple(given.shape)) if isinstance(given, Tensor) else type(given).__name__
