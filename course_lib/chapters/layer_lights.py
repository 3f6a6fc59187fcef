"""Chapter 02: which functions of a layer are already LLaMA's, each compared alone with Hugging Face's, and drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, bare

CHANGED = ("norm", "turn", "share", "mlp")
# Of a layer, in the order of computing.
BOXES = "norm", "q, k, v", "turn", "share", "core", "o", "norm", "mlp"
STAYED, LIKE, UNLIKE = "#dddddd", "#23614a", "#b3261e"


def is_llamas(**functions: Callable | None) -> dict[str, bool]:
    """For each of ``CHANGED``: whether this function gives what the module of Hugging Face's LLaMA gives.

    Args:
        functions: norm(x, weight), turn(x, places), share(x, heads), mlp(x, W); only those given are judged.
    """
    from transformers import LlamaConfig
    from transformers.models.llama import modeling_llama as theirs

    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 8, "rms_norm_eps": 1e-5}
    config = LlamaConfig(**sizes)
    draw = torch.Generator().manual_seed(0)
    x = 1 + torch.randn(1, 24, 256, generator=draw)  # (1, tokens, h), and its mean is not 0
    heads, places = x.unflatten(-1, (8, 32)).transpose(1, 2), torch.arange(24)
    norm, mlp, rope = (
        theirs.LlamaRMSNorm(256, 1e-5),
        theirs.LlamaMLP(config),
        theirs.LlamaRotaryEmbedding(config),
    )
    with torch.no_grad():
        norm.weight.copy_(torch.rand(256, generator=draw))  # it is ones, and would not be missed
    W = {name.split("_")[0]: weight for name, weight in mlp.named_parameters()}
    turned = theirs.apply_rotary_pos_emb(heads, heads, *rope(heads, places[None]))[0]
    wanted: dict[str, tuple[tuple, Tensor]] = {
        "norm": ((x[0], norm.weight), norm(x)[0]),
        "turn": ((heads[0], places), turned[0]),
        "share": ((heads[0, :2], 8), theirs.repeat_kv(heads[:, :2], 4)[0]),
        "mlp": ((x[0], W), mlp(x)[0]),
    }

    def alike(name: str) -> bool:
        function, (given, result) = functions.get(name), wanted[name]
        if function is None:
            return False
        try:
            mine = function(*(x.clone() if isinstance(x, Tensor) else x for x in given))
        except Exception:  # a learner's line that does not run yet
            return False
        return (
            isinstance(mine, Tensor)
            and mine.shape == result.shape
            and torch.allclose(mine.float(), result, atol=1e-4)
        )

    with torch.no_grad():
        return {name: alike(name) for name in CHANGED if name in functions}


def plot_layer(like: Mapping[str, bool] | None = None) -> Picture:
    """A layer as boxes in the order of computing: grey ones are GPT-2's and Llama-2's, the others are judged.

    Args:
        like: of ``is_llamas``; without it the places that change are drawn empty.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(WIDTH, 1.9), layout="constrained")
    axis = figure.subplots()
    arrow = {"arrowstyle": "-|>", "color": "#444444"}
    for i, name in enumerate(BOXES):
        x = i + 0.35 * (i > 5)  # the MLP stands apart
        colour, line, fill, below = STAYED, "-", STAYED, ""
        shown = name.replace("mlp", "MLP")
        if name in CHANGED:
            fill = "white"
            if like is None or name not in like:
                colour, line, shown = "#666666", "--", shown if name in ("norm", "mlp") else "?"
            else:
                colour, line, below = (LIKE, "-", "Llama-2's") if like[name] else (UNLIKE, "--", "not yet")
        box = Rectangle((x, 0), 0.86, 0.6, facecolor=fill, edgecolor=colour, linewidth=2.2, linestyle=line)
        axis.add_patch(box)
        axis.text(x + 0.43, 0.3, shown, ha="center", va="center", fontsize=TITLE)
        axis.text(x + 0.43, -0.12, below, ha="center", va="top", fontsize=TEXT, color=colour)
        if i not in (5, 7):
            axis.annotate("", (x + 1, 0.3), (x + 0.86, 0.3), arrowprops=arrow)
    axis.annotate("", (8.7, 1.2), (-0.5, 1.2), arrowprops=arrow | {"linewidth": 2})
    axis.text(-0.5, 1.3, "x", fontsize=TITLE, va="bottom")
    for down, up in ((0.43, 5.43), (6.78, 7.78)):
        axis.annotate("", (down, 0.62), (down, 1.2), arrowprops=arrow)
        axis.annotate("", (up, 1.2), (up, 0.6), arrowprops=arrow)
        axis.text(up, 1.22, "+", fontsize=TITLE + 3, ha="center", va="bottom")
    axis.set(xlim=(-0.6, 8.8), ylim=(-0.4, 1.6), xticks=[], yticks=[])
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    if like is None:
        said = "empty: " + ", ".join(CHANGED)
    else:
        said = "; ".join(f"{name}: {'' if good else 'not '}Llama-2's" for name, good in like.items())
    return render(figure, f"A layer, attention and MLP, which read x and add to it: {said}.")


def plot_next(theirs: Sequence[int], yours: Sequence[int]) -> Picture:
    """The most likely next token at each place: Hugging Face's above, the learner's below, red where it is another.

    Raises:
        ValueError: there are no places, or not the same number of both.
    """
    from matplotlib.figure import Figure

    if not len(theirs) or len(theirs) != len(yours):
        raise ValueError(f"give next tokens for the same places, not for {len(theirs)} and {len(yours)}")
    figure = Figure(figsize=(WIDTH, 1.35), layout="constrained")
    axis = figure.subplots()
    equal = [a == b for a, b in zip(theirs, yours, strict=True)]
    for height, name, tokens in ((1, "Hugging Face's Llama-2", theirs), (0, "your layers", yours)):
        axis.text(-0.5, height + 0.3, name, fontsize=TEXT, va="bottom")
        for place, (token, good) in enumerate(zip(tokens, equal, strict=True)):
            colour = LIKE if good else "#444444" if height else UNLIKE
            axis.text(place, height, str(token), fontsize=TEXT, ha="center", va="center", color=colour)
    title = f"the most likely next token, by its number: the same at {sum(equal)} of {len(equal)} places"
    axis.set_title(title, fontsize=TITLE, loc="left")
    axis.set(xlim=(-0.6, len(equal) - 0.4), ylim=(-0.4, 1.8), xticks=[], yticks=[])
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    places = ", ".join(str(i) for i, good in enumerate(equal, 1) if good)
    return render(figure, f"{title}{f': {places}' * bool(places)}.")
