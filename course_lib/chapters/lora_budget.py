"""Chapter 17: memory and time of a step with LoRA in Hugging Face's LLaMA."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from simulator.inputs.checks import at_least, one_of, refuse
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes
from simulator.predict.kernel_time import flash_seconds, matmul_seconds, memory_seconds
from simulator.predict.stages import unit_seconds

MATRICES: tuple[str, ...] = ("query", "key", "value", "output", "gate", "up", "down")
PLAN = Plan(attention="flash")
STATES = 16  # bytes of a trained number with Adam, its gradient included
RANK = 8
RESULTS = (*MATRICES, "attention")
CHEAP = {"SiLU": 4, "product": 6}  # bytes that it moves for each number of a token in the MLP
KEEPABLE = (*RESULTS, *CHEAP)  # the results that a recomputed layer can keep
# Bytes that everything but a layer's frozen products and attention reads and writes, for each number of a token's width
# and of its MLP's: each operation that is not a view reads its inputs and writes its result. Again: everything is kept
# that a frozen product, attention or an A gives; all again: nothing is.
OTHER = {"forward": (198, 36), "backward": (365, 44), "again": (168, 34), "all again": (180, 36)}
# For each of ``kept_rows``, and for what down gives: what computes it, and its part of OTHER["again"].
MADE = (
    ((), (0, 0)),
    ((), (36, 0)),  # a norm
    (MATRICES[:3], (78, 0)),  # 12 for what each B adds, 42 for the rotation of query and key
    (("attention",), (0, 0)),
    (("output",), (18, 0)),
    ((), (36, 0)),
    (("gate",), (0, 12)),
    ((), (0, CHEAP["SiLU"])),
    (("up",), (0, 12)),
    ((), (0, CHEAP["product"])),
    (("down",), (0, 0)),
)
WEIGHT = {16: 2.0, 4: 4.127 / 8}  # bits -> bytes of a frozen weight; QLoRA's scales take 0.127 bits more


class Kept(NamedTuple):
    """What a layer keeps of a token: what it is, its bytes, and whose backward needs it."""

    what: str
    bytes: int
    needed: tuple[str, ...]


def kept_rows(shape: ModelShape) -> list[Kept]:
    """What a layer of Hugging Face's LLaMA keeps of a token in bf16. A norm keeps its input in fp32, and SwiGLU is
    three operations. A few numbers of the norms and of FlashAttention are left out."""
    h, f = 2 * shape.hidden, 2 * shape.mlp_width
    return [
        Kept("the layer's input, in fp32", 2 * h, ("the first norm",)),
        Kept("what the first norm gives", h, MATRICES[:3]),
        Kept(
            "what query, key and value give",
            2 * int(shape.attention_width + shape.kv_columns(1)),
            ("attention",),
        ),
        Kept("what attention gives", h, ("attention", "output")),
        Kept("the residual sum after attention, in fp32", 2 * h, ("the second norm",)),
        Kept("what the second norm gives", h, ("gate", "up")),
        Kept("what gate gives", f, ("SiLU",)),
        Kept("what SiLU gives", f, ("the product",)),
        Kept("what up gives", f, ("the product",)),
        Kept("the product", f, ("down",)),
    ]


class Step(NamedTuple):
    """Bytes of a step at its peak, where backward leaves the loss."""

    trained: int
    activations: float
    weights: float
    gradients: float
    optimizer: float
    loss: float

    @property
    def total(self) -> float:
        return sum(self[1:])


def lora_step(
    shape: ModelShape,
    tokens: int,
    places: Collection[str] = MATRICES,
    recomputed: int = 0,
    bits: int = 16,
    keep: Collection[str] = (),
) -> Step:
    """LoRA beside these matrices in every layer of Hugging Face's LLaMA, with one sequence of so many tokens.

    An input that only matrices need is kept if an A reads it, and each B keeps the ``RANK`` numbers of its A. A
    recomputed layer keeps its input, in bf16, and the results that ``keep`` names; with any of these, those of each A
    too.

    Raises:
        ValueError: no place or an unknown one is named, there are no such layers, weights of so many bits, or results.
    """
    if not places:
        refuse("places", f"one or more of {', '.join(MATRICES)}", "none")
    for place in places:
        one_of("place", place, MATRICES)
    one_of("bits", bits, tuple(WEIGHT))
    at_least(1, tokens=tokens)
    _check_layers(shape, recomputed, keep)
    h = shape.hidden
    widths = {name: sum(sides) for name, sides in _sides(shape).items()}
    trained = int(RANK * shape.layers * sum(widths[place] for place in set(places)))
    forgotten = sum(row.bytes for row in kept_rows(shape) if set(row.needed) <= set(MATRICES) - set(places))
    of_a = 2 * RANK * len(set(places))
    layer = _layer(shape) - forgotten + of_a
    results = {name: 2 * out for name, (_, out) in _sides(shape).items()}
    results["attention"] = 2 * shape.attention_width + 4 * shape.heads
    results |= dict.fromkeys(CHEAP, 2 * shape.mlp_width)
    again = 2 * h + sum(results[name] for name in set(keep)) + of_a * bool(keep)
    kept = recomputed * again + (shape.layers - recomputed) * layer + 4 * h + 4 * shape.vocab
    ends = 2 * shape.vocab * h  # numbers of embedding and head, which stay in 16 bits
    weights = 2 * ends + WEIGHT[bits] * (shape.parameters - ends) + 4 * trained
    return Step(trained, tokens * kept, weights, 4 * trained, 8 * trained, _loss(shape, tokens))


def full_step(shape: ModelShape, tokens: int) -> Step:
    """All weights are trained, in mixed precision. A norm also keeps what its weight multiplies, and the head its
    input."""
    n, h = shape.parameters, shape.hidden
    kept = shape.layers * (_layer(shape) + 4 * h) + 8 * h + 4 * shape.vocab
    return Step(int(n), tokens * kept, 2 * n, 2 * n, (STATES - 4) * n, _loss(shape, tokens))


def _layer(shape: ModelShape) -> int:
    """Bytes of a token in a layer: ``kept_rows``, a number of each norm and one of attention for each head."""
    return sum(row.bytes for row in kept_rows(shape)) + 4 * shape.heads + 8


def _loss(shape: ModelShape, tokens: int) -> int:
    """The gradients of logits and of log-probabilities, both in fp32; the log-probabilities are an activation."""
    return 8 * shape.vocab * tokens


def _sides(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """What each matrix reads of a token, and gives."""
    h, f, kv, wide = shape.hidden, shape.mlp_width, shape.kv_columns(1) // 2, shape.attention_width
    sides = ((h, wide), (h, kv), (h, kv), (wide, h), (h, f), (h, f), (f, h))
    return {name: (int(a), int(b)) for name, (a, b) in zip(MATRICES, sides, strict=True)}


def lora_seconds(
    shape: ModelShape, tokens: int, hardware: Hardware, recomputed: int = 0, keep: Collection[str] = ()
) -> float:
    """Seconds of a step with one sequence, LoRA beside all matrices, where recomputed layers keep these results.

    A frozen matrix has no product for its weights in backward. Everything but its products and attention takes as long
    as its bytes, see ``OTHER``.
    """
    _check_layers(shape, recomputed, keep)
    units = unit_seconds(replace(shape, sequence=tokens), PLAN, hardware)
    ahead, back = _frozen_seconds(shape, tokens, hardware)

    def other(when: str) -> float:
        return _moving_seconds(shape, tokens, hardware, *OTHER[when])

    once = sum(ahead.values()) + sum(back.values()) + other("forward") + other("backward")
    again = sum(ahead[name] for name in RESULTS if name not in keep) + other("again" if keep else "all again")
    saved = sum(size for name, size in CHEAP.items() if name in keep)
    again -= _moving_seconds(shape, tokens, hardware, 0, saved)
    return shape.layers * once + recomputed * again + units.embedding / 2 + units.logits * 2 / 3


def again_seconds(shape: ModelShape, tokens: int, hardware: Hardware) -> list[tuple[float, float]]:
    """For each of ``kept_rows``, and for what down gives: seconds to compute it again in all layers, of frozen matrices
    or attention, and of everything else. What every A gives is kept."""
    ahead, _ = _frozen_seconds(shape, tokens, hardware)
    return [
        (
            shape.layers * sum(ahead[name] for name in names),
            shape.layers * _moving_seconds(shape, tokens, hardware, *rest),
        )
        for names, rest in MADE
    ]


def _frozen_seconds(
    shape: ModelShape, tokens: int, hardware: Hardware
) -> tuple[dict[str, float], dict[str, float]]:
    """Of a layer's frozen matrices and attention, in forward and in backward."""
    ahead, back = {}, {}
    for name, (wide, out) in _sides(shape).items():
        ahead[name] = matmul_seconds(tokens, out, wide, hardware)
        back[name] = matmul_seconds(tokens, wide, out, hardware)
    width = int(shape.attention_width / shape.heads)
    ahead["attention"], back["attention"] = flash_seconds(shape.heads, tokens, tokens, width, hardware)
    return ahead, back


def _moving_seconds(shape: ModelShape, tokens: int, hardware: Hardware, of_hidden: int, of_mlp: int) -> float:
    return memory_seconds(tokens * (of_hidden * shape.hidden + of_mlp * shape.mlp_width), hardware)


def _check_layers(shape: ModelShape, recomputed: int, keep: Collection[str]) -> None:
    if not 0 <= recomputed <= shape.layers:
        refuse("layers", f"0 to {shape.layers}", recomputed)
    for name in keep:
        one_of("keep", name, KEEPABLE)


def plot_prices(
    plans: Mapping[str, tuple[float, float, tuple[float, float]]], capacity: float, best: str
) -> Picture:
    """Each plan as a dot: the memory of its step across, how much longer it takes up.

    Args:
        plans: the plan -> bytes, % longer, and where its name stands, in points from the dot: left of it if
            the first is below 0.
        capacity: bytes of the GPU, a dashed line.
        best: the plan that has a colour of its own.

    Raises:
        ValueError: there is nothing to draw, or ``best`` is none of the plans.
    """
    from matplotlib.figure import Figure

    one_of("best", best, tuple(plans))
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axis, told = figure.subplots(), []
    for name, (size, longer, offset) in plans.items():
        colour = "#cc6a24" if name == best else "#1b3a5c"
        axis.plot(size / 1e9, longer, "o", color=colour, markersize=9, clip_on=False, zorder=3)
        line = {"arrowstyle": "-", "color": "#999999", "relpos": (0, 0)} if offset[1] > 2 * TEXT else None
        axis.annotate(
            name,
            (size / 1e9, longer),
            offset,
            textcoords="offset points",
            fontsize=TEXT,
            color=colour,
            ha="right" if offset[0] < 0 else "left",
            va="center",
            arrowprops=line,
        )
        told.append(f"{name.replace(chr(10), ' ')} {size / 1e9:.0f} GB, {longer:.0f} % longer")
    limit = capacity / 1e9
    axis.axvline(limit, color="#222222", linestyle="--", linewidth=1)
    highest = max(longer for _, longer, _ in plans.values())
    axis.text(limit, 1.1 * highest, f"  {limit:.0f} GB", fontsize=TEXT, va="top")
    axis.set(xlim=(0, 1.25 * max(size for size, *_ in plans.values()) / 1e9), ylim=(0, 1.12 * highest or 1))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g} GB")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    axis.set_title("longer than with nothing computed again", fontsize=TEXT, loc="left")
    plain_axes(axis)
    return render(figure, f"Memory and time of each plan. {'; '.join(told)}.")
