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

RATES = [float(f"{10 ** (9 + k / 20):.2g}") for k in range(14, 51)]  # bytes a second, 5 GB to 320 GB
Bars = dict[str, list[float]]  # what a bar stands for -> how long its parts are


def _over(
    title: str, sliders: list[Slider], unit: str, parts: dict[str, str], at: Callable[..., tuple[Bars, str]]
) -> Figure:
    """The figure; ``parts``: name -> colour; ``at``: the bars and the sentence for each choice of the sliders."""
    figure = Figure("bars", title, sliders, unit=unit, parts=list(parts.items()))
    table = [(chosen, *at(*chosen)) for chosen in product(*(slider["choices"] for slider in figure.sliders))]
    figure.given["table"] = [[list(chosen), list(bars.items()), says] for chosen, bars, says in table]
    return figure


def explore_shared_layer(bandwidth: float = 6e9) -> Figure:
    """A layer of a GPT with 22 billion parameters, shared by 1, 2, 4 and 8 A100s: computing, and waiting for messages.

    Args:
        bandwidth: bytes a second that each GPU really sends (``Link.rate``), from 5e9 to 3.2e11.
    """
    a100, shape = GPUS["a100-80gb"], MODELS["gpt-22b"]

    def at(bandwidth: float) -> tuple[Bars, str]:
        hardware, bars = replace(a100, node=Link(a100.node.latency, bandwidth)), {}
        for p in (1, 2, 4, 8):
            parts = layer_seconds(shape, Plan(tp=p, micro_batch=4), hardware).parts
            waiting = parts.pop("tensor_parallel")
            bars[f"{p} GPU{'s' * (p > 1)}"] = [1e3 * sum(parts.values()), 1e3 * waiting]
        one, eight = sum(bars["1 GPU"]), sum(bars["8 GPUs"])
        return bars, f"At {bandwidth / 1e9:g} GB/s eight GPUs are {one / eight:.1f} times as fast as one."

    slider = Slider("bandwidth", bandwidth, RATES, "what a GPU sends", "B/s")
    parts = {"computing": "forward", "waiting for messages": "backward"}
    return _over("A layer that GPUs share", [slider], "ms", parts, at)
