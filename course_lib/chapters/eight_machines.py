"""Chapter 19: what the eight machines of chapter 05 gain when they send less."""

from __future__ import annotations

from functools import cache

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


def step_on_gpus(method: Method, bandwidth: float = ETHERNET) -> float:
    """Seconds of a step of these machines with chapter 05's batch; nothing overlaps."""
    computing = one_gpu() / GPUS
    return exchange_step_seconds(method, Link(LATENCY, bandwidth), computing)


def step_with(share: float, coding: float = 0.0) -> float:
    """Ms of a step whose messages take this share of the time of whole gradients' messages, after so many ms of
    coding. A method has fewer messages than DDP or as many, so what latency adds to its share is left out: 2 ms."""
    computing, whole = 1e3 * one_gpu() / GPUS, 1e3 * step_on_gpus(method_on_gpus(METHODS[0]))
    try:
        not_negative(share=share, coding=coding)
    except ValueError as refused:
        raise Refused(str(refused)) from None
    return computing + coding + share * (whole - computing)


def share_left(coding: float, times: float = 3) -> float:
    """The share that may be sent after so many ms of coding if the eight are to be so many times as fast as one GPU."""
    return (1e3 * one_gpu() / times - step_with(0, coding)) / (step_with(1) - step_with(0))


def thin_share(r: int) -> float:
    """The share of the bytes of GPT-2's whole gradients that PowerSGD sends with ``r`` columns."""
    return method_on_gpus("PowerSGD", r=r).sent / method_on_gpus(METHODS[0]).sent


def within(share: float) -> dict[str, float]:
    """The density of top-k and the ``r`` of PowerSGD that send this share or a little less, but one column at least."""
    return {
        "density": int(1e4 * share / GPUS) / 1e4,
        "r": max((r for r in range(1, 65) if thin_share(r) <= share), default=1),
    }
