"""Chapter 19: what the eight machines of chapter 05 gain when they send less."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from course_lib.chapters.ddp_step import BATCH, ETHERNET, LATENCY, gpt2_pieces, gpt2_step
from course_lib.chapters.refused import Refused
from course_lib.models.gpt import GPT, GPTConfig
from simulator.inputs.checks import at_least, not_negative, one_of, positive
from simulator.inputs.hardware import Link
from simulator.predict.compression_time import Method, exchange_step_seconds
from simulator.predict.compression_traffic import power_sgd_traffic, top_k_traffic
from simulator.predict.traffic import ddp_traffic

GPUS = 8
DDP_BUCKETS = len(gpt2_step(GPUS, BATCH).of(0, "communication"))
METHODS = ("whole gradients", "top-k", "PowerSGD")


@cache
def gpt2_shapes() -> tuple[tuple[int, ...], ...]:
    """The shapes of GPT-2's parameters."""
    with torch.device("meta"):
        return tuple(tuple(w.shape) for w in GPT(GPTConfig()).parameters())


@cache
def one_gpu() -> float:
    """Seconds of one GPU's step with chapter 05's batch."""
    return gpt2_step(1, BATCH).makespan / 1e3


def method_on_gpus(
    method: str, density: float = 0.01, r: int = 4, every: int = 1, coding: float = 0.0
) -> Method:
    """How the eight machines of chapter 05 exchange the gradients of GPT-2.

    Args:
        method: one of ``METHODS``.
        density, r: of top-k and of PowerSGD.
        every: steps from one exchange to the next, with whole gradients.
        coding: ms of an exchange of top-k or PowerSGD.

    Raises:
        Refused: no such method, or a setting that cannot be.
    """
    try:
        one_of("method", method, METHODS)
        at_least(1, r=r, every=every)
        positive(density=density)
        not_negative(coding=coding)
        if density > 1:
            raise ValueError(f"density must be at most 1, not {density}")
        if every > 1 and method != METHODS[0]:
            raise ValueError(f"every > 1 goes with {METHODS[0]!r}, not with {method!r}")
    except ValueError as refused:
        raise Refused(str(refused)) from None
    elements = round(sum(gpt2_pieces()[1]))
    if method == METHODS[0]:
        sent = ddp_traffic([elements], GPUS).sent
        return Method(method, sent, DDP_BUCKETS * 2 * (GPUS - 1), every=every)
    if method == "top-k":
        sent, name = top_k_traffic([elements], GPUS, density), f"top-k, {100 * density:.3g} %"
    else:
        sent, name = power_sgd_traffic([list(gpt2_shapes())], GPUS, r), f"PowerSGD, r = {r}"
    return Method.of(name, sent, coding / 1e3, every)


def share_of(**choice: Any) -> float:
    """The bytes that a choice sends in an exchange, as a part of those of whole gradients."""
    return method_on_gpus(**choice).sent / method_on_gpus(METHODS[0]).sent


def step_on_gpus(method: Method, bandwidth: float = ETHERNET) -> float:
    """Seconds of a step of these machines with chapter 05's batch; nothing overlaps."""
    computing = one_gpu() / GPUS
    return exchange_step_seconds(method, Link(LATENCY, bandwidth), computing)


def times_one(method: Method) -> float:
    """How many times as fast as one GPU the eight are."""
    return one_gpu() / step_on_gpus(method)


def row_of(method: str, every: int = 1, coding: float = 0.0, **setting: Any) -> list[str]:
    """A choice as a row of a table: its name, of what its step consists, the step in ms, and the bytes of a step as a
    part of those of whole gradients. Sending is what computing and coding leave, rounded as they are."""
    mine = method_on_gpus(method, every=every, coding=coding, **setting)
    name = f"local SGD, H = {every}" if every > 1 else mine.name
    share = share_of(method=method, **setting) / every
    step, computing, coded = (
        round(1e3 * step_on_gpus(mine)),
        round(1e3 * one_gpu() / GPUS),
        1e3 * mine.compress,
    )
    parts = f"{computing} + {coded:.3g} + {step - computing - coded:.3g}"
    return [name, parts, str(step), f"{100 * share:.1f} %"]


def reaching(coding: float, at_least: float = 3) -> list[tuple[str, str, dict[str, Any]]]:
    """Of each method the setting that loses least of the gradients and makes the eight so many times as fast: its name,
    the setting in words, and as a choice for ``row_of``. The choice is empty where no setting does."""

    def enough(**choice: Any) -> bool:
        return times_one(method_on_gpus(coding=coding, **choice)) >= at_least

    tried: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "top-k": [(f"{d / 100:g} %", {"density": d / 1e4}) for d in range(100, 0, -1)],
        "PowerSGD": [(f"r = {r}", {"r": r}) for r in range(64, 0, -1)],
        METHODS[0]: [(f"every = {n}", {"every": n}) for n in range(1, 1000)],
    }
    found = []
    for method, settings in tried.items():
        fit = next((one for one in settings if enough(method=method, **one[1])), ("never", {}))
        found.append((method, fit[0], {"method": method} | fit[1] if fit[1] else {}))
    return found
