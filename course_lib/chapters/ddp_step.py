"""Steps of DDP for chapter 05: predicted for GPT-2 on a slow network, and measured on ranks that share a few cores."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.chapters.fsdp_step import slow_blocks
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline, trace_modules
from course_lib.observe.show.rows import rows_of_rank
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime.slow_link import slow_link
from simulator.inputs.known_models import MODELS
from simulator.ledgers.timeline import Timeline
from simulator.predict.overlap import ddp_timeline

GPT2 = MODELS["gpt2"]
FLOPS, ETHERNET = 100e12, 1.25e9  # FLOP/s of a GPU in training; bytes a second of a link of 10 Gbit/s
TINY = {"latency": 1e-3, "bandwidth": 2e7}  # the slowed link of the measured steps


def gpt2_step(gpus: int, tokens: float, itemsize: int = 4, overlap: bool = False) -> Timeline:
    """One step of GPT-2 on each of ``gpus``, in milliseconds; the embedding counts as layer 0.

    Args:
        gpus: that share the batch.
        tokens: of the whole batch.
        itemsize: bytes of a gradient's element.
        overlap: send buckets during backward, not after it.
    """
    layers = [GPT2.parameters - GPT2.layers * GPT2.layer_parameters()]
    layers += [GPT2.layer_parameters()] * GPT2.layers
    forward = [1e3 * 2 * n * tokens / gpus / FLOPS for n in layers]
    return ddp_timeline(
        forward,
        [2 * ms for ms in forward],
        [itemsize * n for n in layers],
        ranks=gpus,
        bandwidth=ETHERNET / 1e3,  # bytes a millisecond
        overlap=overlap,
    )


def rank_0(timeline: Timeline) -> Timeline:
    """Only its spans, without the numbers of layers; where it has nobody to send to, only what it computes."""
    return Timeline(
        s._replace(name=s.name.split()[0] if s.lane == "compute" else "all-reduce")
        for s in timeline.of(0)
        if s.lane == "compute" or s.end > s.start
    )


def measured_step(rung: Any, x: Tensor, y: Tensor, **options: Any) -> tuple[Timeline, int]:
    """One step of a small GPT on this rank: rank 0's timeline in milliseconds, and its number of messages.

    Each block sleeps for 40 ms in forward and for 80 ms in backward, and the link is slowed to ``TINY``.

    Args:
        rung: a class of ``course_lib.by_hand.ddp``.
        x, y: the batch of all ranks, (sequences, tokens).
        options: of the rung.
    """
    torch.manual_seed(0)
    model = slow_blocks(GPT(GPTConfig.tiny()))
    ddp = rung(model, **options)
    mine = [part.chunk(dist.get_world_size())[dist.get_rank()] for part in (x, y)]
    names = {f"blocks.{i}": f"block {i}" for i in range(GPTConfig.tiny().num_layers)}
    dist.barrier()
    with (
        slow_link(TINY["bandwidth"], TINY["latency"]),
        record_timeline() as log,
        trace_modules(model, log, names),
    ):
        cross_entropy(model(mine[0]), mine[1]).backward()
        ddp.average()
        # The slowed link's timers write a message's end, a moment after it.
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
    timeline = in_turn(rows_of_rank(gather_timeline(log)))
    return timeline, len(timeline.of(lane="communication"))


def in_turn(timeline: Timeline) -> Timeline:
    """A message that was started before the link was free begins where the one before it ends: no two overlap."""
    spans, free = [], 0.0
    for span in sorted(timeline.spans, key=lambda span: span.end):
        if span.lane == "communication":
            span = span._replace(start=max(span.start, free))
            free = span.end
        spans.append(span)
    return Timeline(spans)
