"""What a step of a GPT trains, computes and keeps for backward, before and after vectors were put into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.flops import Flops, count_flops


class Costs(NamedTuple):
    """Of one step.

    Attributes:
        trained: numbers.
        kept: bytes that each layer keeps for backward, the lowest layer first.
        flops: of forward and of backward.
    """

    trained: int
    kept: list[int]
    flops: Flops


def step_costs(
    config: GPTConfig, adapt: Callable[[nn.Module], object], batch: int = 1, seq: int = 64
) -> Costs:
    """Costs of a step with ``batch`` texts of ``seq`` tokens, for a GPT that ``adapt`` has changed in place.

    FLOPs are counted without data. For what is kept a forward is computed, with weights that are not set.
    """
    with torch.device("meta"):
        shapes, model = GPT(config), GPT(config)
    adapt(shapes)
    flops = count_flops(shapes, torch.zeros(batch, seq, dtype=torch.long, device="meta"))
    model.to_empty(device="cpu")
    adapt(model)
    trained = sum(p.numel() for p in shapes.parameters() if p.requires_grad)
    return Costs(trained, kept_by_layer(model, torch.zeros(batch, seq, dtype=torch.long)), flops)


def kept_by_layer(model: nn.Module, tokens: Tensor) -> list[int]:
    """Bytes that each of ``model.blocks`` keeps for backward; a storage counts once, and parameters do not."""
    blocks = list(model.get_submodule("blocks").children())
    kept, layer = [0] * len(blocks), -1
    counted = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def enter(which: int) -> None:
        nonlocal layer
        layer = which

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if layer >= 0 and storage.data_ptr() not in counted:
            counted.add(storage.data_ptr())
            kept[layer] += storage.nbytes()
        return tensor

    hooks = [
        hook
        for i, block in enumerate(blocks)
        for hook in (
            block.register_forward_pre_hook(lambda *_, i=i: enter(i)),
            block.register_forward_hook(lambda *_: enter(-1)),
        )
    ]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        result = model(tokens)  # held until the end, and with it all that was kept
    for hook in hooks:
        hook.remove()
    del result
    return kept
