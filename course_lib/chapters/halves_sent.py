"""Chapter 06's judge of ZeRO in PyTorch: the halves that a step sends, and whether it trains as one device does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import AdamW
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import launch

Seen = list[tuple[Tensor, Tensor | None]]  # an optimizer's weights and their gradients at its step


def halves_sent(train: Callable[..., object], x: Sequence[Tensor], y: Sequence[Tensor]) -> str:
    """Halves of an all-reduce in 16 bits that a small GPT's step sends on four ranks, with PyTorch's ``fully_shard``.

    What differs from one device is said, too.

    Args:
        train: called with a model, ``x`` and ``y``; all ranks get the same. AdamW makes one step.
        x, y: the inputs and targets of each pass.
    """
    halves, wrong = launch(_sent, 4, args=(train, x, y), backend="gloo")[0]
    said = f"{halves:.0f} {'half' if round(halves) == 1 else 'halves'}"
    return f"{said}, but {wrong}" if wrong else f"{said}, and trained as on one device"


def _sent(train: Callable[..., object], x: Sequence[Tensor], y: Sequence[Tensor]) -> tuple[float, str]:
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny())
    alone, seen = deepcopy(model), []
    half = 3 / 4 * 2 * sum(w.numel() for w in model.parameters())

    def note(optimizer: Any, *_: object) -> None:
        weights = [w for group in optimizer.param_groups for w in group["params"]]
        seen.append([(w, w.grad if w.grad is None else w.grad.clone()) for w in weights])

    hook = register_optimizer_step_pre_hook(note)
    try:
        with record_traffic() as log:
            train(model, x, y)
    finally:
        hook.remove()
    return log.traffic.sent / half, _wrong(model, alone, seen, x, y)


def _wrong(
    model: nn.Module, alone: nn.Module, steps: list[Seen], x: Sequence[Tensor], y: Sequence[Tensor]
) -> str:
    """What is wrong with a step, from the optimizer's gradients to the weights that it leaves."""
    if not isinstance(model, FSDPModule):
        return "`fully_shard` has not cut the model"
    if len(steps) != 1:
        return f"the optimizer makes {len(steps)} steps, not one"
    weights, found = zip(*steps[0], strict=True)
    if not all(isinstance(w, DTensor) for w in weights):
        return "the optimizer does not have the shards: make it after `fully_shard`"
    if missing := sum(g is None for g in found):
        few = "" if missing == len(found) else f" in {missing} of {len(found)} tensors"
        return f"the optimizer finds no averaged gradient{few}, so it updates nothing{few and ' there'}"
    own = list(alone.parameters())
    if len(own) != len(weights):
        return f"the optimizer has {len(weights)} of {len(own)} tensors"
    passes = [torch.autograd.grad(cross_entropy(alone(a), b), own) for a, b in zip(x, y, strict=True)]
    flat = torch.stack([torch.cat([g.flatten() for g in gradients]) for gradients in passes], 1)
    mean = [g.full_tensor() for g in found]
    shares = torch.linalg.lstsq(flat, torch.cat([g.flatten() for g in mean])[:, None]).solution.flatten()
    shares /= shares.abs().max()  # Adam's first step is the same for any multiple
    if (shares - 1).abs().max() > 0.1:
        counts = ", ".join(f"{abs(share):.1f}".removesuffix(".0") for share in shares.tolist())
        return f"in its update the passes count {counts} times, on one device each once"
    if not all(isinstance(w, DTensor) for w in model.parameters()):
        return "the next step computes with old weights"
    for w, g in zip(own, mean, strict=True):
        w.grad = g
    AdamW(own).step()
    trained = zip(model.parameters(), own, strict=True)
    same = all(torch.allclose(a.full_tensor(), b, atol=1e-6) for a, b in trained)
    return "" if same else "the trained weights are not those of one device"
