"""What the check of exercise 05.6 runs on the ranks: a training step, beside one device and likely mistakes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.grading.checks.ddp_ranks import flat, generator_of
from course_lib.observe.ledgers.traffic import record_traffic


def mended(answer: Callable, scale: float, frozen: bool, seed: int) -> dict[str, Any]:
    """Two steps of the answer, each beside the step of one device and the steps of likely mistakes."""
    rank, ranks, generator = dist.get_rank(), dist.get_world_size(), generator_of(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    model[0].requires_grad_(not frozen)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    steps = []
    for _ in range(2):
        data = [
            (scale * torch.randn(4, 6, generator=generator), torch.randint(3, (4,), generator=generator))
            for _ in range(ranks)
        ]
        start = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
        with record_traffic() as log:
            loss = answer(model, optimizer, *(t.clone() for t in data[rank]))
        after = partial(_after, *start, data)
        found = {
            "parameters": flat(list(model.parameters()), list(model.parameters())),
            "loss": loss.item() if isinstance(loss, Tensor) else loss,
            "losses": [F.cross_entropy(start[0](x), y).item() for x, y in data],
            "messages": log.traffic.calls,
            "right": after(),
            "mistakes": {
                "when each rank clips its own gradients, before they are averaged": after(clip="own"),
                "when gradients are not clipped": after(clip=None),
                "when gradients are added up and not averaged": after(divide=1),
                "when each rank applies its own gradients": after(only=rank),
            },
        }
        steps.append(found)
    return {"steps": steps}


def _after(
    model: nn.Module,
    state: dict[str, Any],
    data: Sequence[tuple[Tensor, Tensor]],
    clip: str | None = "average",
    divide: int | None = None,
    only: int | None = None,
) -> Tensor:
    """The parameters after one step of one device that has all parts; the arguments are mistakes."""
    model = copy.deepcopy(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    optimizer.load_state_dict(copy.deepcopy(state))
    parts = [torch.autograd.grad(F.cross_entropy(model(x), y), trained) for x, y in data]
    if only is not None:
        parts = [parts[only]]
    if clip == "own":
        parts = [_clipped(part) for part in parts]
    average = [sum(each) / (divide or len(parts)) for each in zip(*parts, strict=True)]
    for p, g in zip(trained, _clipped(average) if clip == "average" else average, strict=True):
        p.grad = g
    optimizer.step()
    return flat(list(model.parameters()), list(model.parameters()))


def _clipped(gradients: Sequence[Tensor]) -> list[Tensor]:
    norm = torch.stack([g.norm() for g in gradients]).norm()
    return [g * min(1.0, 1.0 / (norm.item() + 1e-6)) for g in gradients]
