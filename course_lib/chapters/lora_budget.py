"""Chapter 17: memory and time of a step with LoRA in a LLaMA, what fits into a GPU, and what LoRA learned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

from simulator.inputs.checks import at_least, one_of, positive, refuse
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.memory import MemoryBreakdown
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, human, plain_axes, ticks_in
from simulator.predict.memory import head_bytes, layer_bytes, model_states
from simulator.predict.stages import unit_seconds

COLOURS = ("#1b3a5c", "#cc6a24", "#23614a")
MATRICES: tuple[str, ...] = ("query", "key", "value", "output", "gate", "up", "down")
PLAN = Plan(attention="flash")  # bf16 with Adam: 16 bytes for a trained number, 2 for a frozen one


class Line(NamedTuple):
    """Bytes of a step: what stays, however many tokens it has, and what each token adds."""

    stays: float
    token: float

    def at(self, tokens: float) -> float:
        return self.stays + tokens * self.token

    def fit(self, capacity: float) -> float:
        """Tokens with which the capacity is full."""
        return (capacity - self.stays) / self.token


def kept_rows(shape: ModelShape) -> list[tuple[str, int, tuple[str, ...]]]:
    """What a LLaMA's layer keeps of a token: what it is, how many numbers, and whose backward needs it.

    As ``layer_bytes`` counts it, without FlashAttention's one number for each head.
    """
    h, f = shape.hidden, shape.mlp_width
    return [
        ("the layer's input", h, ("the first norm",)),
        ("what the first norm gives", h, MATRICES[:3]),
        ("what query, key and value give", shape.attention_width + shape.kv_columns(1), ("attention",)),
        ("what attention gives", h, ("attention", "output")),
        ("the sum behind attention", h, ("the second norm",)),
        ("what the second norm gives", h, ("gate", "up")),
        ("what gate and up give", 2 * f, ("SwiGLU",)),
        ("what SwiGLU gives", f, ("down",)),
    ]


class LoraStep(NamedTuple):
    """How many numbers LoRA trains, and the memory of a step by category, without and with its tokens."""

    trained: int
    states: MemoryBreakdown
    line: Line

    def at(self, tokens: float) -> MemoryBreakdown:
        return self.states + MemoryBreakdown(activations=tokens * self.line.token)


def lora_step(
    shape: ModelShape, places: Collection[str], rank: int = 8, lowest: int = 1, recomputed: int = 0
) -> LoraStep:
    """LoRA beside these matrices of a LLaMA, in the layers from ``lowest`` (counted from 1) up.

    Below the lowest layer nothing is kept; in the layers above, an input that only matrices need is kept if an A
    reads it. Of these layers the lowest ``recomputed`` keep their input only, and backward brings back one at a time.

    Raises:
        ValueError: no place or an unknown one is named, or there are no such layers.
    """
    if not places:
        refuse("places", f"one or more of {', '.join(MATRICES)}", "none")
    for place in places:
        one_of("place", place, MATRICES)
    at_least(1, rank=rank)
    h, f, kv = shape.hidden, shape.mlp_width, shape.kv_columns(1) // 2
    widths = dict(zip(MATRICES, (2 * h, h + kv, h + kv, 2 * h, h + f, h + f, f + h), strict=True))
    layers = _layers(shape, lowest, recomputed)
    trained = rank * layers * sum(widths[place] for place in set(places))
    forgotten = [n for _, n, needed in kept_rows(shape) if set(needed) <= set(MATRICES) - set(places)]
    tokens = PLAN.micro_batch * shape.sequence
    kept = layer_bytes(shape, PLAN) / tokens + PLAN.itemsize * (rank * len(set(places)) - sum(forgotten))
    frozen = MemoryBreakdown(parameters=model_states(shape.parameters, PLAN).parameters)
    states = frozen + model_states(trained, PLAN)
    held = recomputed * PLAN.itemsize * h + max(layers - recomputed, 1) * kept
    return LoraStep(trained, states, Line(states.total, held + head_bytes(shape, PLAN) / tokens))


def lora_seconds(
    shape: ModelShape, tokens: int, hardware: Hardware, lowest: int = 1, recomputed: int = 0
) -> float:
    """Seconds of a step with one text, as the simulator predicts them, without what A and B add.

    A frozen matrix has no product for its weights in backward, and below the lowest layer there is no backward.
    """
    layers = _layers(shape, lowest, recomputed)
    units = unit_seconds(replace(shape, sequence=tokens), PLAN, hardware)
    (layer,) = units.layers.values()
    ahead = (shape.layers + recomputed) * layer.forward_seconds + units.embedding / 2
    return ahead + layers * (layer.backward_seconds - layer.weight) + units.logits * 2 / 3


def _layers(shape: ModelShape, lowest: int, recomputed: int) -> int:
    """How many layers have LoRA."""
    at_least(1, lowest=lowest)
    if lowest > shape.layers:
        refuse("lowest", f"at most the {shape.layers} layers", lowest)
    layers = shape.layers - lowest + 1
    if not 0 <= recomputed <= layers:
        refuse("recomputed", f"0 to {layers}, the layers that have LoRA", recomputed)
    return layers


def plot_tokens_that_fit(
    lines: Mapping[str, Line], capacity: float, end: int, wanted: int | None = None
) -> Picture:
    """Memory over the tokens of a step, a line for each way of training, up to where the GPU is full.

    An earlier line is wider, so that one sees it below a later one that is the same.

    Args:
        end: tokens at the right end of the axis.
        wanted: tokens that are to fit.

    Raises:
        ValueError: there is no line, there are more than can be told apart, or one does not fit at all.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    positive(capacity=capacity, end=end)
    if not 1 <= len(lines) <= len(COLOURS):
        raise ValueError(f"give 1 to {len(COLOURS)} lines, not {len(lines)}")
    if full := [name for name, line in lines.items() if line.stays >= capacity]:
        raise ValueError(f"{', '.join(full)}: {human(capacity)} are full before the first token")
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    axis = figure.subplots()
    axis.axhline(capacity / 1e9, color="#222222", linestyle="--", linewidth=1)
    axis.text(0, 1.01 * capacity / 1e9, f" {human(capacity)}: full", va="bottom", fontsize=TEXT)
    if wanted is not None:
        axis.axvline(wanted, color="#8a8a8a", linestyle=":", linewidth=1.6)
        axis.text(wanted, 0, f"  wanted:\n  {wanted:,}", va="bottom", fontsize=TEXT)
    told = []
    for place, ((name, line), colour) in enumerate(zip(lines.items(), COLOURS, strict=False)):
        tokens, wide = line.fit(capacity), 2.2 + 1.8 * (len(lines) - 1 - place)
        told.append(f"{name}: {round(tokens, -2):,.0f} tokens fit")
        axis.plot(
            [0, tokens], [line.stays / 1e9, capacity / 1e9], color=colour, linewidth=wide, label=told[-1]
        )
        axis.plot(tokens, capacity / 1e9, "X", color=colour, markersize=7 + wide)
    axis.set(xlim=(0, end), ylim=(0, 1.12 * capacity / 1e9))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_major_formatter(FuncFormatter(ticks_in("GB")))
    axis.set_xlabel("tokens of a step", fontsize=TEXT, loc="right")
    figure.legend(loc="outside lower center", ncols=2, fontsize=TEXT, frameon=False)
    plain_axes(axis)
    return render(figure, f"Memory over the tokens of a step, up to {human(capacity)}. {'; '.join(told)}.")


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
