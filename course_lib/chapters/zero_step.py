"""A step of data parallelism by hand, DDP or a stage of ZeRO, in two ledgers: memory and traffic (chapter 06)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import AdamW

from course_lib.data_parallel.flat import storage_bytes
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from simulator.ledgers.memory import MemoryBreakdown


class Step(NamedTuple):
    """Of one rank.

    Args:
        kept: bytes at the end of backward.
        gradients: bytes in ``.grad`` each time that backward has completed one, and each time that some are freed.
        sent: bytes, from forward to the next step's forward.
    """

    kept: MemoryBreakdown
    gradients: list[float]
    sent: float


def zero_step(rung: Any, x: Tensor, y: Tensor, passes: int = 1) -> Step:
    """The second step of a small GPT with AdamW, when its states exist; every rank calls it.

    Args:
        rung: ``PerParameter`` of ``course_lib.by_hand.ddp``, or a stage of ``course_lib.by_hand.zero``.
        x, y: the batch of all ranks, (sequences, tokens).
        passes: backward passes before the update.
    """
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny())
    parameters, gradients, sharded = list(model.parameters()), [], "Zero" in rung.__name__
    # Before the stage's own hooks, which may free gradients, and after them.
    note(parameters, lambda: gradients.append(storage_bytes(grads(trained))))
    zero = rung(model, model.blocks) if sharded else rung(model)
    note(parameters, lambda: gradients.append(storage_bytes(grads(trained))))
    trained = [*parameters, *(zero.shards() if sharded else ())]
    optimizer = AdamW(zero.shards() if sharded else parameters)
    mine = [part.chunk(dist.get_world_size())[dist.get_rank()] for part in (x, y)]
    for _ in range(2):
        gradients.clear()
        with record_traffic() as log:
            for _ in range(passes):
                cross_entropy(model(mine[0]), mine[1]).backward()
            states = [value for state in optimizer.state.values() for value in state.values()]
            kept = MemoryBreakdown(*map(storage_bytes, (trained, grads(trained), states)))
            zero.after_backward() if sharded else zero.average()
            optimizer.step()
            optimizer.zero_grad()
            if sharded:
                zero.after_update()
    return Step(kept, gradients, log.traffic.sent)


def note(parameters: Iterable[Tensor], call: Any) -> None:
    for w in parameters:
        w.register_post_accumulate_grad_hook(lambda _: call())


def grads(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [t.grad for t in tensors if t.grad is not None]
