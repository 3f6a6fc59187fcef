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
from course_lib.grading.samples_seen import samples_seen
from course_lib.observe.ledgers.traffic import record_traffic


def mended(answer: Callable, scale: float, frozen: bool, seed: int) -> dict[str, Any]:
    """Two steps of the answer, each beside the step of one device and the steps of likely mistakes."""
    rank, ranks, generator = dist.get_rank(), dist.get_world_size(), generator_of(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))  # larger inputs, larger gradients
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()  # a step before: it leaves gradients, and momentum
    model[0].requires_grad_(not frozen)
    steps = []
    for _ in range(2):
        # As many examples of each class: where inputs are small, the sum of the ranks' gradients is small, too, and
        # clipping the sum is not the same as dividing by the norm.
        targets = torch.arange(4 * ranks)[torch.randperm(4 * ranks, generator=generator)] % 3
        data = [(scale * torch.randn(4, 6, generator=generator), y) for y in targets.chunk(ranks)]
        start = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
        stale = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        with record_traffic() as log, samples_seen(model) as seen:
            loss = answer(model, optimizer, *(t.clone() for t in data[rank]))
        after = partial(_after, *start, data, stale)
        found = {
            "parameters": flat(list(model.parameters()), list(model.parameters())),
            "loss": loss.item() if isinstance(loss, Tensor) else loss,
            "losses": [F.cross_entropy(start[0](x), y).item() for x, y in data],
            "messages": log.traffic.calls,
            "seen": sum(seen),
            "right": after(),
            "mistakes": {
                "when each rank clips its own gradients, before they are averaged": after(clip="own"),
                "when gradients are not clipped": after(clip=None),
                "when gradients are added up and not averaged": after(divide=1),
                "when each rank applies its own gradients": after(only=rank),
                "when gradients are divided by their norm where it is below 1, too": after(clip="always"),
                "when the norm that clips also counts the loss": after(clip="with loss"),
                "when each parameter is clipped by its own norm": after(clip="each"),
                "when the gradients of the step before are not cleared": after(cleared="none"),
                "when a frozen parameter moves by a gradient of the step before": after(cleared="trained"),
                "when the gradient of a frozen parameter is set to zero and not to None: the optimizer then moves it "
                "by its momentum": after(cleared="zeroed"),
            },
        }
        steps.append(found)
    return {"steps": steps}


def _after(
    model: nn.Module,
    state: dict[str, Any],
    data: Sequence[tuple[Tensor, Tensor]],
    stale: Sequence[Tensor | None],
    clip: str | None = "average",
    divide: int | None = None,
    only: int | None = None,
    cleared: str = "all",
) -> Tensor:
    """The parameters after one step of one device that has all parts; the arguments are mistakes."""
    model = copy.deepcopy(model)
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    before = {p: g for p, g in zip(parameters, stale, strict=True) if g is not None}
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    optimizer.load_state_dict(copy.deepcopy(state))
    losses = [F.cross_entropy(model(x), y) for x, y in data]
    parts = [torch.autograd.grad(loss, trained) for loss in losses]
    if only is not None:
        parts = [parts[only]]
    if clip == "own":
        parts = [_clipped(part) for part in parts]
    average = [sum(each) / (divide or len(parts)) for each in zip(*parts, strict=True)]
    if cleared == "none":
        average = [g + before.get(p, 0) for p, g in zip(trained, average, strict=True)]
    if clip == "each":
        average = [_clipped([g])[0] for g in average]
    elif clip == "with loss":
        average = _clipped([*average, sum(losses).detach() / len(losses)])[:-1]
    elif clip in ("average", "always"):
        average = _clipped(average, always=clip == "always")
    for p in parameters:
        p.grad = None if cleared == "all" else before.get(p)
        if cleared == "zeroed" and p.grad is not None:
            p.grad = torch.zeros_like(p)
    for p, g in zip(trained, average, strict=True):
        p.grad = g
    optimizer.step()
    return flat(parameters, parameters)


def _clipped(gradients: Sequence[Tensor], always: bool = False) -> list[Tensor]:
    norm = torch.stack([g.norm() for g in gradients]).norm().item()
    if (
        always
    ):  # who writes this divides by the norm itself; PyTorch adds a millionth, which a small norm would show
        return [g / norm for g in gradients]
    return [g / (norm + 1e-6) if norm > 1 else g for g in gradients]
