"""Chapter 17: memory and time of a step with LoRA in Hugging Face's LLaMA, and what LoRA learned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

from simulator.inputs.checks import at_least, one_of, refuse
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes
from simulator.predict.kernel_time import flash_seconds, matmul_seconds, memory_seconds
from simulator.predict.stages import unit_seconds

COLOURS = ("#1b3a5c", "#cc6a24", "#23614a")
MATRICES: tuple[str, ...] = ("query", "key", "value", "output", "gate", "up", "down")
PLAN = Plan(attention="flash")
STATES = 16  # bytes of a trained number with Adam, its gradient included
RANK = 8
RESULTS = (*MATRICES, "attention")  # what a recomputed layer can keep
# Bytes that everything but a layer's frozen products and attention reads and writes, for each number of a token's width
# and of its MLP's: each operation that is not a view reads its inputs and writes its result. Again: everything is kept
# that a frozen product, attention or an A gives; all again: nothing is.
OTHER = {"forward": (198, 36), "backward": (365, 44), "again": (168, 34), "all again": (180, 36)}
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
    ahead, back = {}, {}
    for name, (wide, out) in _sides(shape).items():
        ahead[name] = matmul_seconds(tokens, out, wide, hardware)
        back[name] = matmul_seconds(tokens, wide, out, hardware)
    width = int(shape.attention_width / shape.heads)
    ahead["attention"], back["attention"] = flash_seconds(shape.heads, tokens, tokens, width, hardware)

    def other(when: str) -> float:
        of_hidden, of_mlp = OTHER[when]
        return memory_seconds(tokens * (of_hidden * shape.hidden + of_mlp * shape.mlp_width), hardware)

    once = sum(ahead.values()) + sum(back.values()) + other("forward") + other("backward")
    again = sum(ahead[name] for name in RESULTS if name not in keep) + other("again" if keep else "all again")
    return shape.layers * once + recomputed * again + units.embedding / 2 + units.logits * 2 / 3


def _check_layers(shape: ModelShape, recomputed: int, keep: Collection[str]) -> None:
    if not 0 <= recomputed <= shape.layers:
        refuse("layers", f"0 to {shape.layers}", recomputed)
    for name in keep:
        one_of("keep", name, RESULTS)


def plot_seeds(groups: Mapping[str, Mapping[str, Sequence[float]]], coin: float) -> Picture:
    """For each setting a dot for each seed, and the mean beside them.

    Args:
        groups: what has one colour -> setting -> the share of right answers under each seed.
        coin: the share that guessing gets.

    Raises:
        ValueError: there is nothing to draw, or there are more groups than colours.
    """
    from matplotlib.figure import Figure

    rows = [(group, name, tests) for group, own in groups.items() for name, tests in own.items()]
    if not rows or len(groups) > len(COLOURS) or not all(tests for *_, tests in rows):
        raise ValueError(f"give 1 to {len(COLOURS)} groups, each setting with its seeds")
    figure = Figure(figsize=(WIDTH, 0.7 + 0.27 * len(rows)), layout="constrained")
    axis, told = figure.subplots(), []
    colours = dict(zip(groups, COLOURS, strict=False))
    for place, (group, name, tests) in enumerate(rows):
        percent = [100 * one for one in tests]
        axis.plot(percent, [place] * len(percent), "o", color=colours[group], markersize=8, alpha=0.75)
        said = f"{mean(percent):.1f} %"
        axis.annotate(
            said, (max(percent), place), (9, 0), textcoords="offset points", va="center", fontsize=TEXT
        )
        told.append(f"{group}{': ' * bool(name)}{name} {said}")
    axis.axvline(100 * coin, color="#222222", linestyle="--", linewidth=1)
    axis.text(100 * coin, -0.45, " a coin", fontsize=TEXT, va="center")
    axis.set_yticks(
        range(len(rows)), [f"{group}{': ' * bool(name)}{name}" for group, name, _ in rows], fontsize=TEXT
    )
    for label, (group, *_) in zip(axis.get_yticklabels(), rows, strict=True):
        label.set_color(colours[group])
    highest = max(100 * one for *_, tests in rows for one in tests)
    axis.set(xlim=(100 * coin - 1, highest + 5), ylim=(len(rows) - 0.4, -0.8))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    axis.set_xlabel(
        "right, of the test sentences; a dot for each seed, and their mean", fontsize=TEXT, loc="right"
    )
    plain_axes(axis)
    return render(figure, f"Right answers, the mean over seeds. {'; '.join(told)}.")
