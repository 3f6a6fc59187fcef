"""What the checks of chapter 05 run on the ranks: an answer first, and then what each rank's part gives by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.grading.ranks import launch
from course_lib.grading.report import Report
from course_lib.grading.samples_seen import samples_seen
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic


def on_ranks(fn: Callable, ranks: int, args: tuple, timeout: float = 60.0) -> list[Any]:
    """On the CPU, wherever the course runs; the time limit ends what hangs."""
    return launch(fn, ranks, args=args, backend="gloo", timeout=timeout)


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flat(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """Gradients end to end; one that is missing counts as nan, since it is no gradient at all."""
    filled = [torch.full_like(p, torch.nan) if g is None else g for g, p in zip(tensors, like, strict=True)]
    return torch.cat([t.detach().flatten() for t in filled])


def without_gradient(model: nn.Module) -> list[str]:
    """The names of trained parameters whose ``.grad`` is None."""
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


def report_samples(report: Report, seen: Sequence[int], own: Sequence[int], task: str) -> None:
    """A base fact: without it every rank could compute the whole batch, and need no gradient of another."""
    rank = next((rank for rank, (n, most) in enumerate(zip(seen, own, strict=True)) if n > most), 0)
    report.true(
        seen[rank] <= own[rank],
        "the model of each rank sees that rank's samples only",
        f"the model of rank {rank} sees {seen[rank]} samples, and this rank has {own[rank]}",
        task=task,
    )


def report_missing(
    report: Report, results: Sequence[dict[str, Any]], task: str, likely: str | None = None
) -> None:
    """End the case where, on some rank, a trained parameter has no gradient."""
    for rank, result in enumerate(results):
        if result["missing"]:
            report.fail(f"on rank {rank}, `.grad` of `{result['missing'][0]}` is None", likely, task=task)


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
    with record_traffic() as log, samples_seen(model) as seen:
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
        "missing": without_gradient(model),
        "seen": sum(seen),
        "tensors": len(trained),
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
    with record_traffic() as log, samples_seen(module) as seen:
        answer(model, [(x.clone(), y.clone()) for x, y in data[rank]])
    gradient, missing = flat([p.grad for p in trained], trained).clone(), without_gradient(module)
    left_off = not model.require_backward_grad_sync
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
        "missing": missing,
        "seen": sum(seen),
        "means": means[rank],
        "next is right": torch.allclose(after, first, atol=1e-5),
        "left off": left_off,
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
    x = parts[rank].clone()
    with record_traffic() as log:
        answered = answer(x)
    pair = isinstance(answered, tuple | list) and all(isinstance(t, Tensor) for t in answered)
    return {
        "answer": tuple(t.detach().clone() for t in answered) if pair else answered,
        "parts": parts,
        "kept": torch.equal(x, parts[rank]),
        "messages": log.traffic.calls,
        "sent": log.traffic.sent,
    }
