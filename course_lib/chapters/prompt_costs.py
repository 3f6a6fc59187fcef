"""What a step of a GPT trains, computes and keeps for backward, before and after vectors were put into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.flops import Flops, flops_by_module
from course_lib.observe.ledgers.saved import saved_bytes_by_module


class Costs(NamedTuple):
    """Of one step.

    Attributes:
        trained: numbers.
        kept: bytes that each layer keeps for backward, the lowest layer first.
        flops: of forward and of backward.
        head: those of them that the matrix of the logits takes.
    """

    trained: int
    kept: list[int]
    flops: Flops
    head: int


def step_costs(
    config: GPTConfig, adapt: Callable[[nn.Module], object], batch: int = 1, seq: int = 64
) -> Costs:
    """Costs of a step with ``batch`` texts of ``seq`` tokens, for a GPT that ``adapt`` has changed in place.

    FLOPs and kept bytes are counted without data.
    """

    def build() -> nn.Module:
        model = GPT(config)
        adapt(model)
        return model

    tokens = torch.zeros(batch, seq, dtype=torch.long)
    with torch.device("meta"):
        shapes = build()
    trained = sum(p.numel() for p in shapes.parameters() if p.requires_grad)
    saved = saved_bytes_by_module(build, tokens, depth=2)
    kept = [
        saved.get(f"blocks.{layer}", 0)
        for layer in range(len(list(shapes.get_submodule("blocks").children())))
    ]
    counted = flops_by_module(shapes, tokens.to("meta"))
    whole, head = counted[""], counted["head"]
    return Costs(trained, kept, Flops(whole.forward, whole.backward), head.forward + head.backward)
