"""What the checks of chapter 06 run on the ranks: an answer, and beside it what one device would have computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.training.adam import adam_update
from simulator.ledgers.traffic import Traffic

SETTINGS = {"lr": 0.1, "weight_decay": 0.3}  # the decay shows a wrong scale, which Adam alone would hide
STEPS = 3


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def over_ranks(tensor: Tensor) -> Tensor:
    """The mean over all ranks."""
    total = tensor.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def others(traffic: Traffic, *allowed: str) -> list[str]:
    return sorted({row.collective for row in traffic.rows} - set(allowed))


# ---- 06.2: gradients that go as soon as they are reduced ------------------------------------------------------


class Tied(nn.Module):
    """Sizes that nothing divides; ``shared`` is used at both ends, so its gradient is complete last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.shared = nn.Linear(7, 5, bias=False)
        self.layers = nn.Sequential(nn.Linear(5, 11), nn.Tanh(), nn.Linear(11, 5), nn.Tanh(), nn.Linear(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.shared(x)) @ self.shared.weight


def released(answer: Callable[[list[nn.Parameter]], dict[nn.Parameter, Tensor]]) -> dict[str, Any]:
    """Two backwards with the answer's hooks: its shards after each, and the most gradient bytes alive."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = Tied()
    parameters = list(model.parameters())
    inputs = [random(4, 7, seed=10 * step + rank) for step in range(2)]
    whole = [torch.autograd.grad(model(x).square().sum(), parameters) for x in inputs]
    padded = [[F.pad(g.flatten(), (0, -g.numel() % ranks)) for g in gradients] for gradients in whole]
    want = [[over_ranks(g).chunk(ranks)[rank] for g in gradients] for gradients in padded]
    own = [[g.chunk(ranks)[rank] for g in gradients] for gradients in padded]

    alive, peak = WeakIdKeyDictionary(), 0

    def count(parameter: nn.Parameter) -> None:  # runs before the answer's hook: this one is registered first
        nonlocal peak
        storage = parameter.grad.untyped_storage()
        alive[storage] = storage.nbytes()
        del storage
        peak = max(peak, sum(alive.values()))

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(count)
    shards = answer(parameters)
    after, left = [], []
    with record_traffic() as log:
        for x in inputs:
            model(x).square().sum().backward()
            after.append([shards[p].clone() if p in shards else None for p in parameters])
            left.append(sum(p.grad is not None for p in parameters))
    sizes = [p.numel() * 4 for p in parameters]
    return {
        "want": want, "own": own, "after": after, "left": left, "peak": peak, "sizes": sizes,
        "padded": [4 * g.numel() for g in padded[0]], "sent": log.traffic.sent,
        "others": others(log.traffic, "reduce-scatter"),
    }  # fmt: skip


# ---- 06.3: the stage-1 step -----------------------------------------------------------------------------------


def adam_on_one(weights: Tensor, gradients: list[Tensor], *, count: bool = True) -> Tensor:
    """Adam on the whole; ``count=False`` makes the mistake of a step counter that stays at 1."""
    weights, first, second = weights.clone(), torch.zeros_like(weights), torch.zeros_like(weights)
    for step, gradient in enumerate(gradients, 1):
        adam_update(weights, gradient, first, second, step if count else 1, **SETTINGS)
    return weights


def stepped(answer: Callable[..., None], part: int) -> dict[str, Any]:
    """Some steps of the answer, and where one device and the likely mistakes would have come."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    start = random(ranks * part, seed=1)
    own = [random(ranks * part, seed=100 * step + rank) for step in range(STEPS)]
    means = [over_ranks(gradient) for gradient in own]
    weights, state = start.clone(), {}
    with record_traffic() as log:
        for gradient in own:
            answer(weights, gradient.clone(), state, **SETTINGS)
    want = adam_on_one(start, means)
    mine = slice(rank * part, (rank + 1) * part)
    stale = start.clone()
    stale[mine] = want[mine]
    tensors = [value for value in state.values() if isinstance(value, Tensor) and value.numel() > 1]
    return {
        "got": weights, "want": want, "stale": stale,
        "summed": adam_on_one(start, [ranks * mean for mean in means]),
        "alone": adam_on_one(start, own),
        "first": adam_on_one(start, means, count=False),
        "start": start,
        "state": sum(tensor.numel() for tensor in tensors),
        "sent": log.traffic.sent, "calls": log.traffic.calls,
    }  # fmt: skip


# ---- 06.5: the norm of a gradient that is spread over ranks ---------------------------------------------------


def clipped(answer: Callable[..., Tensor], counts: list[list[int]], max_norm: float) -> dict[str, Any]:
    """``counts``: for each rank, how many elements of each of its shards are real."""
    rank = dist.get_rank()
    length = max(max(own) for own in counts)
    shards = []
    for place, real in enumerate(counts[rank]):
        shard = random(length, seed=10 * rank + place)
        shard[real:] = 50.0  # padding: nobody has promised zeros
        shards.append((shard, real))
    tied, bias = random(3, 2, seed=77), random(4, seed=78)
    whole = [tied, bias, tied]

    squares = torch.zeros(2, dtype=torch.float64)
    for shard, real in shards:
        squares += torch.stack([shard[:real].double().square().sum(), shard.double().square().sum()])
    mine = squares[0].item()
    dist.all_reduce(squares)
    once = sum(t.double().square().sum().item() for t in (tied, bias))
    tied_square = tied.double().square().sum().item()
    norm = (squares[0].item() + once) ** 0.5
    before = [t.clone() for t in [*(s[:real] for s, real in shards), tied, bias]]
    with record_traffic() as log:
        got = answer(shards, whole, max_norm)
    return {
        "norm": float(got) if got is not None else None,
        "want": norm,
        "mistakes": {
            "padding": (squares[1].item() + once) ** 0.5,
            "tied": (squares[0].item() + once + tied_square) ** 0.5,
            "copies": (squares[0].item() + once * len(counts)) ** 0.5,
            "local": (mine + once) ** 0.5,
            "square": norm**2,
        },
        "after": torch.cat([t.flatten() for t in [*(s[:real] for s, real in shards), tied, bias]]),
        "before": torch.cat([t.flatten() for t in before]),
        "tied_from": sum(counts[rank]),
        "sent": log.traffic.sent, "calls": log.traffic.calls,
    }  # fmt: skip
