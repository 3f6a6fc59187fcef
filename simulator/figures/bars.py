"""Bars that a slider changes: a layer on several GPUs (chapter 09)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from simulator.figures.figure import Figure, Slider
from simulator.inputs.hardware import Link
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.predict.layer_time import layer_seconds

RATES = [float(f"{10 ** (9 + k / 20):.2g}") for k in range(12, 39)]  # bytes a second, 4 GB to 79 GB
Bars = dict[str, list[float]]  # what a bar stands for -> how long its parts are


def _over(
    title: str, sliders: list[Slider], unit: str, parts: dict[str, str], at: Callable[..., tuple[Bars, str]]
) -> Figure:
    """The figure; ``parts``: name -> colour; ``at``: the bars and the sentence for each choice of the sliders."""
    figure = Figure("bars", title, sliders, unit=unit, parts=list(parts.items()))
    table = [(chosen, *at(*chosen)) for chosen in product(*(slider["choices"] for slider in figure.sliders))]
    figure.given["table"] = [[list(chosen), list(bars.items()), says] for chosen, bars, says in table]
    return figure


def explore_shared_layer(card: float = 6e9) -> Figure:
    """A layer of a GPT with 22 billion parameters: computing, and waiting, for two sequences.

    8 A100s share it in one node, or 16 in two, or two copies of 8 compute a sequence each.

    Args:
        card: bytes a second that each network card really sends (``Link.rate``), from 4e9 to 7.9e10. A node has eight.
    """
    a100, shape = GPUS["a100-80gb"], MODELS["gpt-22b"]

    def at(card: float) -> tuple[Bars, str]:
        hardware, bars = replace(a100, network=Link(a100.network.latency, card)), {}
        for name, p, sequences in (("8 GPUs", 8, 2), ("2 × 8 GPUs", 8, 1), ("16 GPUs", 16, 2)):
            parts = layer_seconds(shape, Plan(tp=p, micro_batch=sequences, attention="flash"), hardware).parts
            waiting = parts.pop("tensor_parallel")
            bars[name] = [1e3 * sum(parts.values()), 1e3 * waiting]
        one, copies, two = (sum(parts) for parts in bars.values())
        return bars, (
            f"With {card / 1e9:g} GB/s through each card, 16 GPUs in two nodes need {two:.1f} ms, "
            f"8 in one node {one:.1f}, two copies of 8 {copies:.1f} before they average gradients."
        )

    slider = Slider("card", card, RATES, "through each card", "B/s")
    parts = {"computing": "forward", "waiting for messages": "backward"}
    return _over("A layer that two nodes share", [slider], "ms", parts, at)
