"""A step of DDP for chapter 05, measured on ranks that share a few cores and send over a slowed link."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.by_hand.ddp import Bucket, Overlap
from course_lib.chapters.fsdp_step import slow_blocks
from course_lib.chapters.refused import Refused, refused_on_ranks
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline, trace_modules
from course_lib.observe.show.rows import rows_of_rank
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import launch
from course_lib.runtime.slow_link import slow_link
from simulator.ledgers.timeline import Timeline

TINY = {"latency": 1e-3, "bandwidth": 2e7}  # the slowed link of the measured steps


class OurDDP(Overlap):
    """The learner mends its ``gradient_is_ready``; what that does not send is sent after backward."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__(model, **options)
        for bucket in self.buckets:
            bucket.start = partial(_start, bucket)

    def average(self) -> None:
        for bucket in self.buckets:
            if not hasattr(bucket, "work"):
                bucket.start()
        self.waiting = []
        super().average()


def _start(bucket: Bucket) -> None:
    """Send a bucket; ``Refused`` if that is too early."""
    if any(w.grad is None for w in bucket.parameters):
        raise Refused("You start a bucket too early: one of its gradients is not there yet.")
    Bucket.start(bucket)


def tiny_sending(ranks: int) -> tuple[float, float]:
    """Milliseconds in which a ring sends all gradients of the measured step's model, and latencies of a message."""
    with torch.device("meta"):
        size = sum(w.nbytes for w in GPT(GPTConfig.tiny()).parameters())
    rounds = 2 * (ranks - 1)
    return 1e3 * rounds / ranks * size / TINY["bandwidth"], 1e3 * rounds * TINY["latency"]


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
    messages = len(timeline.of(lane="communication"))
    buckets = [bucket.parameters for bucket in getattr(ddp, "buckets", [])]
    return named_messages(timeline, [_layers(model, bucket) for bucket in buckets]), messages


def quickest_step(rung: Any, x: Tensor, y: Tensor, **options: Any) -> tuple[Timeline, int]:
    """Of three measured steps of four ranks the quickest: a busy moment of the computer spoils none.

    Args:
        rung, x, y, options: of ``measured_step``.

    Raises:
        Refused: the rung starts a bucket too early.
    """

    def quickest() -> tuple[Timeline, int]:
        return min(
            (measured_step(rung, x, y, **options) for _ in range(3)), key=lambda step: step[0].makespan
        )

    with refused_on_ranks():
        return launch(quickest, 4)[0]


def named_messages(timeline: Timeline, names: list[str]) -> Timeline:
    """Each message with its name, in the order in which they are sent; without names as it is."""
    left = iter(names)
    spans = sorted(timeline.spans, key=lambda span: span.start)
    return Timeline(
        span._replace(name=f"{span.name} {next(left, '')}".strip()) if span.lane == "communication" else span
        for span in spans
    )


def _layers(model: nn.Module, bucket: list[Tensor]) -> str:
    """``"3+2"``: the blocks that have a twentieth of a bucket's bytes or more; ``"e"`` for the embedding.

    Outside both is only the last norm.
    """
    held: dict[str, int] = {}
    for name, w in reversed(list(model.named_parameters())):
        if any(w is one for one in bucket):
            kind = name.split(".")[1] if name.startswith("blocks.") else name.split(".")[0]
            kind = "e" if kind == "embedding" else kind
            held[kind] = held.get(kind, 0) + w.nbytes
    return "+".join(kind for kind, size in held.items() if size >= 0.05 * sum(held.values()))


def in_turn(timeline: Timeline) -> Timeline:
    """A message that was started before the link was free begins where the one before it ends: no two overlap."""
    spans, free = [], 0.0
    for span in sorted(timeline.spans, key=lambda span: span.end):
        if span.lane == "communication":
            span = span._replace(start=max(span.start, free))
            free = span.end
        spans.append(span)
    return Timeline(spans)
