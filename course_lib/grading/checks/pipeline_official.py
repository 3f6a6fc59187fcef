"""The check of 11.4: PyTorch's own pipeline on microbatches with unequal numbers of targets."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.grading.compare import settle
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from course_lib.runtime.fork_server import preload

preload("torch.distributed.pipelining")  # it takes a second and a half to import

TIME_LIMIT = 60.0  # seconds for the ranks of one case
WORDS, HIDDEN, SEQ = 24, 16, 5

MEAN = "is the gradient of the **mean loss over all targets that count**"

# Ranks, rows of the batch, microbatches, rows of which no target counts (the last ones).
CASES = [(2, 8, 4, 0), (3, 6, 6, 1), (2, 7, 3, 0), (3, 5, 4, 2), (1, 3, 2, 0)]


class Mixer(nn.Module):
    """A layer that keeps the rows of the batch apart, as a transformer's does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 32), nn.Linear(32, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def make_stages(ranks: int) -> list[nn.Sequential]:
    torch.manual_seed(ranks)
    stages = [[Mixer()] for _ in range(ranks)]
    stages[0].insert(0, nn.Embedding(WORDS, HIDDEN))
    stages[-1].append(nn.Linear(HIDDEN, WORDS))
    return [nn.Sequential(*parts) for parts in stages]


def make_batch(seed: int, rows: int, silent: int) -> tuple[Tensor, Tensor]:
    """Texts of unequal length: behind the end of each one the targets do not count."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(WORDS, (2, rows, SEQ), generator=generator)
    lengths = [1, SEQ, *(draw.randint(1, SEQ) for _ in range(rows - 2 - silent)), *[0] * silent]
    for row, length in zip(targets, lengths, strict=True):
        row[length:] = -100
    return tokens, targets


class Mark(torch.autograd.Function):
    """Gives back what it gets, and tells when the graph behind it has been used, or is gone."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, counter: InFlight) -> Tensor:
        ctx.graph = Graph()
        ctx.ended = weakref.finalize(ctx.graph, counter.end)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.ended()
        return gradient, None


class Graph:
    """Lives as long as the node of autograd that holds it."""


class InFlight:
    """Counts the microbatches of a module of which the forward has run, and the backward has not begun."""

    def __init__(self, module: nn.Module) -> None:
        self.now = self.peak = 0
        module.register_forward_hook(self.begun)

    def begun(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        if not output.requires_grad or output.is_meta or type(output) is not Tensor:
            return None  # PyTorch finds out the shapes
        self.now += 1
        self.peak = max(self.peak, self.now)
        return Mark.apply(output, self)

    def end(self) -> None:
        self.now -= 1


def on_rank(answer: Callable[..., Any], ranks: int, seed: int, rows: int, m: int, silent: int) -> dict:
    tokens, targets = make_batch(seed, rows, silent)
    kept = tokens.clone(), targets.clone()
    module = make_stages(ranks)[dist.get_rank()]
    counter = InFlight(module)
    loss = answer(module, tokens, targets, m)
    return {
        "loss": loss.detach() if isinstance(loss, Tensor) else loss,
        "gradients": {name: p.grad for name, p in module.named_parameters()},
        "peak": counter.peak,
        "kept": torch.equal(tokens, kept[0]) and torch.equal(targets, kept[1]),
    }


def oracle(
    ranks: int, tokens: Tensor, targets: Tensor, loss_fn: Callable[[Tensor, Tensor], Tensor]
) -> tuple[float, Tensor]:
    """The loss, and all gradients in one vector, of one device."""
    model = nn.Sequential(*make_stages(ranks))
    loss = loss_fn(model(tokens), targets)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


def _sum(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum")


def _mean(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def _padded(tokens: Tensor, targets: Tensor, m: int, label: int = -100) -> tuple[Tensor, Tensor]:
    missing = -len(tokens) % m
    rows = torch.full_like(targets[:1], label).expand(missing, -1)
    return torch.cat([tokens, tokens[:1].expand(missing, -1)]), torch.cat([targets, rows])


def _repeated(ranks: int, tokens: Tensor, targets: Tensor, m: int, *, last: bool) -> Callable[[], Tensor]:
    """The gradients where the batch is filled up with its last row, or its first one, as often as needed."""
    rows = [torch.cat([t, (t[-1:] if last else t[:1]).expand(-len(t) % m, -1)]) for t in (tokens, targets)]
    return lambda: oracle(ranks, *rows, _mean)[1]


def _by_microbatch(tokens: Tensor, targets: Tensor, m: int, share: Callable[[Tensor], float]):
    """A loss that adds up microbatches, each the sum of its losses times its ``share``."""

    def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
        parts = zip(logits.chunk(m), targets.chunk(m), strict=True)
        return sum(_sum(*part) * share(part[1]) for part in parts)

    return loss_fn


def mistakes(ranks: int, tokens: Tensor, targets: Tensor, m: int) -> dict[str, Callable[[], Tensor]]:
    """What gradients come out of likely mistakes."""
    counted = int((targets != -100).sum())
    rows = _padded(tokens, targets, m)

    def gradients(share: Callable[[Tensor], float]) -> Callable[[], Tensor]:
        return lambda: oracle(ranks, *rows, _by_microbatch(*rows, m, share))[1]

    def own_mean(mb: Tensor) -> float:
        return 1 / int((mb != -100).sum())  # raises where a microbatch has none, as the true one gives NaN

    def nan_mean(mb: Tensor) -> float:
        count = int((mb != -100).sum())
        return 1 / count if count else float("nan")

    return {
        "when each microbatch's mean is taken, and the means are averaged": gradients(
            lambda t: own_mean(t) / m
        ),
        "when each microbatch's mean is taken, and the means are added up": gradients(own_mean),
        "when the gradients are divided by the number of microbatches, too (`scale_grads`)": gradients(
            lambda t: 1 / counted / m
        ),
        "when the sum of all losses is not divided at all": gradients(lambda t: 1.0),
        "when the sum of all losses is divided by the number of microbatches only": gradients(
            lambda t: 1 / m
        ),
        "when targets of −100 are counted, too": gradients(lambda t: 1 / targets.numel()),
        "when the rows that were added are counted, too": gradients(lambda t: 1 / rows[1].numel()),
        "when the rows at the end are left out that fill no whole microbatch": lambda: oracle(
            ranks, *(t[: len(t) // m * m] for t in (tokens, targets)), _mean
        )[1],
        "when the targets of the rows that were added count, too": lambda: oracle(
            ranks, *_padded(tokens, targets, m, label=0), _mean
        )[1],
        "when the last row of the batch is added once more, and its targets count again": _repeated(
            ranks, tokens, targets, m, last=True
        ),
        "when the first row of the batch is added once more, and its targets count again": _repeated(
            ranks, tokens, targets, m, last=False
        ),
    }


@check
def check_11_4(report: Report, pipeline_step: Callable[..., Any]) -> None:
    for ranks, rows, m, silent in CASES:
        name = f"{ranks} rank{'s' * (ranks > 1)}, {rows} rows in {m} microbatches"
        name += f", {silent} row{'s' * (silent > 1)} without targets" if silent else ""
        with report.case(name):
            seed = report.seed()
            found = launch(
                on_rank,
                ranks,
                args=(pipeline_step, ranks, seed, rows, m, silent),
                timeout=TIME_LIMIT,
                quiet=True,
                backend="gloo",
            )
            _judge(report, found, ranks, *make_batch(seed, rows, silent), m)


def _judge(report: Report, found: list[dict], ranks: int, tokens: Tensor, targets: Tensor, m: int) -> None:
    loss, want = oracle(ranks, tokens, targets, _mean)
    missing = [
        f"{name} of rank {rank}"
        for rank in range(ranks)
        for name, g in found[rank]["gradients"].items()
        if g is None
    ]
    report.true(
        not missing,
        "every parameter has a gradient",
        f"{len(missing)} parameters have no gradient, such as {', '.join(missing[:1])}",
        task="`parameter.grad` of every parameter",
    )
    got = torch.cat([g.flatten() for each in found for g in each["gradients"].values()])
    report.close(
        "all gradients, in one vector,",
        got,
        want,
        mistakes=mistakes(ranks, tokens, targets, m),
        given=(),
        task=MEAN,
    )
    report.close(
        "the loss on the last rank",
        settle(found[-1]["loss"], loss),
        loss,
        mistakes={
            "when the mean of the microbatches' losses is returned": loss / m,
            "when the sum of all losses is returned": loss * int((targets != -100).sum()),
        },
        given=(),
        task="On the last rank the mean loss is returned",
    )
    report.true(
        all(each["kept"] for each in found),
        "`tokens` and `targets` keep their values",
        "`tokens` or `targets` have other values afterwards",
        task="`tokens` and `targets` keep their values.",
    )
    peaks = [each["peak"] for each in found]
    fewest = [min(m, ranks - rank) for rank in range(ranks)]
    idle = next((rank for rank in range(ranks) if peaks[rank] < fewest[rank]), 0)
    report.true(
        peaks[idle] >= fewest[idle],
        "every rank begins microbatches while the ranks behind it work",
        f"rank {idle} has at most {peaks[idle]} of {m} microbatches at once, so the ranks do not work side by side: "
        f"{fewest[idle]} fit into the pipeline from here on",
        task="the first `ranks - r` microbatches, or all, begin before one of them goes back",
    )
    report.at_most(
        "microbatches at once beyond what a rank may have",
        max(peak - (ranks - rank) for rank, peak in enumerate(peaks)),
        0,
        mistakes={
            "when all forwards run first, as in `ScheduleGPipe`": max(m - (ranks - r) for r in range(ranks))
        },
        given=(),
        task="at most `ranks - r` microbatches have begun and not ended",
    )
