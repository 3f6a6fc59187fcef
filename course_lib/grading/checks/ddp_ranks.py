"""What the checks of chapter 05 run on the ranks: an answer first, and then what each rank's part gives by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.data_parallel.ddp import assign_buckets as deal
from course_lib.grading.ranks import launch
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic


def on_ranks(fn: Callable, ranks: int, args: tuple, timeout: float = 30.0) -> list[Any]:
    """On the CPU, wherever the course runs; the time limit ends what hangs."""
    return launch(fn, ranks, args=args, backend="gloo", timeout=timeout)


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flat(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """Gradients end to end; one that is missing counts as nan, since it is no gradient at all."""
    filled = [torch.full_like(p, torch.nan) if g is None else g for g, p in zip(tensors, like, strict=True)]
    return torch.cat([t.detach().flatten() for t in filled])


# ---- 05.2 ---------------------------------------------------------------------------------------------------


class Chain(nn.Module):
    """Six layers in two halves, which may be computed in either order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.left = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.right = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor, crossed: bool) -> Tensor:
        halves = [self.left, self.right]
        if not crossed:  # one after the other
            for layer in [*self.left, *self.right]:
                x = torch.tanh(layer(x))
            return x
        out = []
        for half in halves if dist.get_rank() == 0 else halves[::-1]:
            y = x
            for layer in half:
                y = torch.tanh(layer(y))
            out.append(y * (1 if half is self.left else 2))
        return out[0] + out[1]


def overlap(answer: Callable, limit: int, how: str, seed: int) -> dict[str, Any]:
    """Two steps of the answer on this rank: gradients, messages, and when each of them was issued."""
    rank = dist.get_rank()
    model, crossed = Chain(seed), how == "crossed"
    if how == "frozen":
        model.right[1].requires_grad_(False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    buckets = deal(parameters, limit)
    steps = []
    for step in range(2):
        inputs = torch.randn(4, 8, generator=generator_of(seed + 10 * rank + step))

        def loss(inputs: Tensor = inputs) -> Tensor:
            return model(inputs, crossed).square().sum()

        own = torch.autograd.grad(loss(), parameters)
        before = [
            torch.full_like(p, rank + 1.0) if how == "earlier" else torch.zeros_like(p) for p in parameters
        ]
        for p, g in zip(parameters, before, strict=True):
            p.grad = g.clone() if how == "earlier" else None
        ready: list[int] = []  # parameters whose gradients are there, in order
        issued: list[
            tuple[int, bool]
        ] = []  # how many were there when a message was issued, and whether it blocks
        original = dist.all_reduce

        def watched(*given: Any, _to=issued, _ready=ready, _all_reduce=original, **named: Any) -> Any:
            _to.append((len(_ready), not (given[3] if len(given) > 3 else named.get("async_op", False))))
            return _all_reduce(*given, **named)

        hooks = [
            p.register_post_accumulate_grad_hook(lambda p, to=ready: to.append(id(p))) for p in parameters
        ]
        with record_traffic() as log, mock.patch.object(dist, "all_reduce", watched):
            answer(loss(), [list(bucket) for bucket in buckets])
        kept = sum(
            hook.id in (p._post_accumulate_grad_hooks or {})
            for hook, p in zip(hooks, parameters, strict=True)
        )
        complete = [max(ready.index(id(p)) + 1 for p in bucket) for bucket in buckets if ready]
        in_turn = [max(complete[: i + 1]) for i in range(len(complete))]
        late = [max(0, found - due) for (found, _), due in zip(issued, in_turn, strict=False)]
        fired = len(ready)
        for hook in hooks:
            hook.remove()
        steps.append(
            {
                "gradients": flat([p.grad for p in parameters], parameters),
                "own": flat(own, parameters),
                "before": flat(before, parameters),
                "messages": log.traffic.calls,
                "late": sum(late),
                "blocking": sum(blocks for found, blocks in issued if found < len(parameters)),
                "order": sorted(range(len(complete)), key=complete.__getitem__),
                "fired": fired,
                "kept": kept,
                "expected": len(parameters),
                "left": sum(map(_hooks_of, parameters)),
            }
        )
    begins = {p: sum(q.numel() for q in parameters[:place]) for place, p in enumerate(parameters)}
    places = [torch.cat([begins[p] + torch.arange(p.numel()) for p in bucket]) for bucket in buckets]
    return {"buckets": len(buckets), "places": places, "steps": steps}


def _hooks_of(p: Tensor) -> int:
    return len(p._post_accumulate_grad_hooks or ()) + len(p._backward_hooks or ())


# ---- 05.3 ---------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Embedding and output layer share their weight."""

    def __init__(self, seed: int, frozen: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.middle = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.output = nn.Linear(4, 9, bias=False)
        self.output.weight = self.embedding.weight
        self.middle.requires_grad_(not frozen)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.tanh(self.middle(self.embedding(tokens))))  # (samples, 9)


def weighted(answer: Callable, sizes: Sequence[int], frozen: bool, seed: int) -> dict[str, Any]:
    rank, generator = dist.get_rank(), generator_of(seed)
    data = [
        (torch.randint(9, (n,), generator=generator), torch.randint(9, (n,), generator=generator))
        for n in sizes
    ]
    model = Tied(seed, frozen)
    with record_traffic() as log:
        answer(model, *(t.clone() for t in data[rank]))
    found = {name: p.grad for name, p in model.named_parameters()}
    reference = Tied(seed, frozen)
    trained = [(name, p) for name, p in reference.named_parameters() if p.requires_grad]
    sums = []
    for x, y in data:
        loss = F.cross_entropy(reference(x), y, reduction="sum")
        sums.append(
            flat(torch.autograd.grad(loss, [p for _, p in trained]), [p for _, p in trained]).double()
        )
    return {
        "gradients": flat([found[name] for name, _ in trained], [p for _, p in trained]),
        "sums": sums,
        "tied": torch.cat([torch.full((p.numel(),), "embedding" in name) for name, p in trained]),
        "frozen kept": all(p.grad is None for p in model.parameters() if not p.requires_grad),
        "messages": log.traffic.calls,
        "sent": log.traffic.sent,
    }


# ---- 05.4 ---------------------------------------------------------------------------------------------------


def accumulated(answer: Callable, sizes: Sequence[Sequence[int]], seed: int) -> dict[str, Any]:
    """One accumulated step of the answer, with PyTorch's DDP; each rank has its own list of microbatch sizes."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    module = GPT(GPTConfig.tiny(num_layers=2, hidden_size=32, max_length=16, dropout=0.0))
    module.blocks[0].requires_grad_(False)

    def microbatch(r: int, m: int) -> tuple[Tensor, Tensor]:
        text = torch.randint(256, (sizes[r][m], 9), generator=generator_of(seed + 100 * r + m))
        return text[:, :-1], text[:, 1:]

    data = [[microbatch(r, m) for m in range(len(sizes[r]))] for r in range(ranks)]
    trained = [p for p in module.parameters() if p.requires_grad]

    def loss_of(model: nn.Module, r: int, m: int) -> Tensor:
        tokens, following = data[r][m]
        return F.cross_entropy(model(tokens).flatten(0, 1), following.flatten())

    model = DistributedDataParallel(module, bucket_cap_mb=0.05)
    with record_traffic() as log:
        answer(model, [(x.clone(), y.clone()) for x, y in data[rank]])
    gradient = flat([p.grad for p in trained], trained).clone()
    model.zero_grad(set_to_none=False)
    loss_of(model, rank, 0).backward()
    after = flat([p.grad for p in trained], trained).double()
    means = [
        [
            flat(torch.autograd.grad(loss_of(module, r, m), trained), trained).double()
            for m in range(len(sizes[r]))
        ]
        for r in range(ranks)
    ]
    first = sum(own[0] for own in means) / ranks
    return {
        "gradient": gradient,
        "means": means[rank],
        "next is right": torch.allclose(after, first, atol=1e-5),
        "sent": log.traffic.of("all-reduce").sent,
    }


# ---- 05.5 ---------------------------------------------------------------------------------------------------


def statistics(
    answer: Callable, sizes: Sequence[int], shape: tuple[int, int, float], seed: int
) -> dict[str, Any]:
    rank, (channels, side, offset), generator = dist.get_rank(), shape, generator_of(seed)
    parts = [
        offset + r + torch.randn(n, channels, side, side, generator=generator) for r, n in enumerate(sizes)
    ]
    with record_traffic() as log:
        answered = answer(parts[rank].clone())
    pair = isinstance(answered, tuple | list) and all(isinstance(t, Tensor) for t in answered)
    return {
        "answer": tuple(t.detach().clone() for t in answered) if pair else answered,
        "parts": parts,
        "messages": log.traffic.calls,
        "sent": log.traffic.sent,
    }
