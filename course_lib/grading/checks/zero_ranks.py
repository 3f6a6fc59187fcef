"""What the checks of chapter 06 run on the ranks: an answer, and what it kept and sent. Inputs come from the check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from course_lib.data_parallel.flat import storage_bytes
from course_lib.observe.ledgers.traffic import record_traffic

ON_CPU: dict[str, Any] = {"timeout": 60.0, "backend": "gloo"}  # a run takes two seconds; this ends what hangs


# ---- 06.2: gradients that go as soon as they are reduced ------------------------------------------------------


class Tied(nn.Module):
    """Parameters of many sizes. ``shared`` is used at both ends, ``late`` in the second backward only.

    Args:
        frozen: the first layer takes no gradient.
        size: elements of the widest layer.
    """

    def __init__(self, seed: int, size: int, frozen: bool) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.shared = nn.Linear(7, 5, bias=False)
        self.layers = nn.Sequential(nn.Linear(5, size), nn.Tanh(), nn.Linear(size, 5), nn.Tanh())
        self.late = nn.Parameter(torch.randn(5))
        self.scale = nn.Parameter(torch.randn(1))
        self.layers[0].requires_grad_(not frozen)

    def forward(self, x: Tensor, with_late: bool) -> Tensor:
        hidden = self.layers(self.shared(x)) * self.scale
        return (hidden + self.late if with_late else hidden) @ self.shared.weight


def loss_of(model: Tied, x: Tensor, step: int) -> Tensor:
    return model(x, with_late=step > 0).square().sum()


def released(
    answer: Callable[[list[nn.Parameter]], dict[nn.Parameter, Tensor]],
    model_of: tuple[int, int, bool],
    inputs: Sequence[Sequence[Tensor]],
) -> dict[str, Any]:
    """Three backwards with the answer's hooks: its shards after each, and the most gradient bytes alive.

    Args:
        inputs: for each backward, that of each rank.
    """
    model = Tied(*model_of)
    parameters = list(model.parameters())
    names = {parameter: name for name, parameter in model.named_parameters()}
    alive, peak, seen, latest = WeakIdKeyDictionary(), 0, [], None

    def watch(parameter: nn.Parameter) -> None:  # runs before the answer's hook: this one is registered first
        nonlocal peak, latest
        latest = parameter
        seen.append(parameter.grad is not None and parameter.grad.shape == parameter.shape)
        storage = parameter.grad.untyped_storage()
        alive[storage] = storage.nbytes()
        del storage
        peak = max(peak, sum(alive.values()))

    trained = [p for p in parameters if p.requires_grad]
    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(watch)
    means = answer(parameters)
    after, left = [], 0
    with record_traffic() as log:
        for step, of_ranks in enumerate(inputs):
            loss = loss_of(model, of_ranks[dist.get_rank()], step)
            try:
                loss.backward()
            except (AttributeError, TypeError) as error:  # such as: None has no attribute 'flatten'
                if latest is not None and latest.grad is not None:
                    error.args = (f"{error}. The `.grad` that is complete now is that of `{names[latest]}`",)
                raise
            after.append([_entry(means, p) for p in parameters])
            left += sum(p.grad is not None for p in parameters)
    return {
        "after": after,
        "left": left,
        "keys": next((type(key).__name__ for key in means if not isinstance(key, Tensor)), None),
        "peak": peak,
        "watched": len(seen) if all(seen) else -1,
        "kept": storage_bytes(means.values()) if hasattr(means, "values") else 0,
        "sent": log.traffic.sent,
    }


def _entry(means: Any, parameter: nn.Parameter) -> Tensor | None:
    # Not by `get`: a key `id(parameter)` has the parameter's hash, and comparing a number with a tensor raises.
    items = means.items() if hasattr(means, "items") else ()
    entry = next((value for key, value in items if key is parameter), None)
    return entry.detach().clone() if isinstance(entry, Tensor) else entry


# ---- 06.3: a mended step --------------------------------------------------------------------------------------


def stepped(
    answer: Callable[..., None],
    trainings: Sequence[tuple[Tensor, Sequence[Sequence[Tensor]], dict[str, float]]],
) -> dict[str, Any]:
    """Trainings in turns, a step each: the weights after every step, and what was kept and sent."""
    me = dist.get_rank()
    weights = [start.clone() for start, _, _ in trainings]
    states: list[dict[str, Any]] = [{} for _ in trainings]
    after: list[list[Tensor]] = [[] for _ in trainings]
    with record_traffic() as log:
        for step in range(len(trainings[0][1])):
            for i, (_, gradients, settings) in enumerate(trainings):
                answer(weights[i], gradients[step][me].clone(), states[i], **settings)
                after[i].append(weights[i].detach().clone())
    numbers = [_numbers(state) for state in states]
    collectives = {row.collective: row.calls for row in log.traffic.rows}
    return {
        "after": [torch.stack(steps) for steps in after],
        "kept": max(numbers),
        "sent": log.traffic.sent,
        "calls": sum(collectives.values()),
    }


def _numbers(state: dict[str, Any]) -> int:
    """Numbers in the memory behind ``state``: a view keeps the whole tensor."""
    tensors = [value for value in state.values() if isinstance(value, Tensor)]
    count = sum(storage_bytes([t]) // t.element_size() for t in tensors)
    return count + len(state) - len(tensors)


# ---- 06.5: the norm of a gradient that is spread over ranks ---------------------------------------------------


def clipped(
    answer: Callable[..., Any],
    shards: Sequence[Sequence[tuple[Tensor, int]]],
    whole: Sequence[Tensor],
    max_norm: float,
) -> dict[str, Any]:
    """The answer's norm, and this rank's real elements after it, laid end to end; the last of ``whole`` is its first.

    Args:
        shards: those of each rank.
        whole: the gradients that all ranks have; the first stands in the answer's list twice.
    """
    mine = [(tensor.clone(), count) for tensor, count in shards[dist.get_rank()]]
    held = [tensor.clone() for tensor in whole]
    with record_traffic() as log:
        norm = answer(list(mine), [*held, *held[:1]], max_norm)
    after = [tensor[:count] for tensor, count in mine] + [tensor.flatten() for tensor in held]
    norm = norm.detach().clone() if isinstance(norm, Tensor) else norm
    return {
        "norm": norm.reshape(()) if isinstance(norm, Tensor) and norm.numel() == 1 else norm,
        "after": torch.cat([torch.zeros(0), *after]),
        "sent": log.traffic.sent,
        "calls": log.traffic.calls,
    }
