"""The check of 19.2: error feedback with three faults, and what comes out with each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.grading.checks.ddp_ranks import generator_of, on_ranks
from course_lib.grading.report import Report, check
from course_lib.observe.ledgers.traffic import record_traffic

MISSING = "minus what this rank sent"


class FaultyFeedback:
    """Averages gradients that are compressed, and keeps what was left out."""

    def __init__(self, compress):
        self.compress = compress
        self.missing = {}

    def average(self, name, gradient):
        missing = self.missing.get(gradient.shape, torch.zeros_like(gradient))
        sent = self.compress(gradient + missing)
        mean = sent.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        self.missing[gradient.shape] = gradient - mean
        return mean


def largest(k: int, tensor: Tensor) -> Tensor:
    """The k numbers of the largest absolute values, and zeros for the others."""
    flat = tensor.flatten()
    kept = flat.abs().topk(min(k, flat.numel())).indices
    return torch.zeros_like(flat).index_copy(0, kept, flat[kept]).view_as(tensor)


def signs(tensor: Tensor) -> Tensor:
    """One bit for each number: its sign, times the mean absolute value."""
    return torch.where(tensor < 0, -1.0, 1.0).to(tensor) * tensor.abs().mean()


class Case(NamedTuple):
    ranks: int
    compress: str
    steps: int
    shapes: dict[str, tuple[int, ...]]

    def __str__(self) -> str:
        noun = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{noun}, {self.compress}, {', '.join(map(str, self.shapes.values()))}"

    def function(self) -> Callable[[Tensor], Tensor]:
        return signs if self.compress == "signs" else partial(largest, int(self.compress.split()[1]))


TWINS = {"layer 0": (3, 4), "layer 1": (3, 4), "bias": (5,)}
CASES = [
    Case(2, "largest 2", 4, TWINS),
    Case(3, "largest 3", 5, {"embedding": (8, 2), "bias 0": (6,), "bias 1": (6,)}),
    Case(3, "signs", 4, {"layer 0": (7,), "layer 1": (7,)}),
    Case(1, "largest 1", 4, {"layer 0": (4,), "layer 1": (4,)}),
    Case(2, "largest 9", 3, {"all is sent": (3, 3), "as large": (3, 3)}),
]


def gradients(case: Case, seed: int) -> list[list[dict[str, Tensor]]]:
    """By step and rank: a gradient for each name."""
    generator = generator_of(seed)
    return [
        [
            {name: torch.randn(s, generator=generator) for name, s in case.shapes.items()}
            for _ in range(case.ranks)
        ]
        for _ in range(case.steps)
    ]


def run(answer: Callable, case: Case, seed: int) -> dict[str, Any]:
    rank, feedback, steps, kept, messages = dist.get_rank(), answer(case.function()), [], True, []
    buffers = {
        name: torch.empty(shape) for name, shape in case.shapes.items()
    }  # gradients reuse their memory
    for drawn in gradients(case, seed):
        found = []
        for name, gradient in drawn[rank].items():
            buffers[name].copy_(gradient)
            with record_traffic() as log:
                mean = feedback.average(name, buffers[name])
            messages.append([row.payload for row in log.events])
            kept &= torch.equal(buffers[name], gradient)
            found.append(mean.detach().clone().flatten())
            if isinstance(mean, Tensor):
                mean.detach().zero_()  # the caller writes into what it got
            buffers[name].zero_()
        steps.append(torch.cat(found))
    return {"means": torch.stack(steps), "kept": kept, "messages": max(messages, key=len)}


def means(
    case: Case,
    drawn: Sequence[Sequence[dict[str, Tensor]]],
    *,
    forgets: bool = False,
    minus_mean: bool = False,
    by_shape: bool = False,
    feedback: bool = True,
    divide: bool = True,
    late: bool = False,
    one_for_all_ranks: bool = False,
    not_copied: bool = False,
    minus_sum: bool = False,
    minus_share: bool = False,
    piled: bool = False,
) -> list[Tensor]:
    """All means of each step on each rank, (steps, numbers); the settings make single faults of it."""
    compress, missing, steps = case.function(), [{} for _ in range(case.ranks)], []
    for step, now in enumerate(drawn):
        results = []
        for name in case.shapes:
            key = case.shapes[name] if by_shape else name
            own = [g[name] for g in now]
            old = [m.get(key, torch.zeros_like(g)) for m, g in zip(missing, own, strict=True)]
            if not_copied and step == 1:  # the memory of the first gradient has the second one now
                old = [m + g - first[name] for m, g, first in zip(old, own, drawn[0], strict=True)]
            whole = [g + m for g, m in zip(own, old, strict=True)]
            sent = [compress(w) for w in whole]
            if late:
                sent = [compress(g) + m for g, m in zip(own, old, strict=True)]
            mean = sum(sent) / (case.ranks if divide else 1)
            for rank, m in enumerate(missing):
                had = own[rank] if forgets else whole[rank]
                gone = sum(sent) if minus_sum else sent[rank] / (case.ranks if minus_share else 1)
                m[key] = had - (mean if minus_mean else gone) + (old[rank] if piled else 0)
                if not feedback:
                    m[key] = torch.zeros_like(had)
            if one_for_all_ranks:
                shared = sum(m[key] for m in missing) / case.ranks
                missing = [{**m, key: shared} for m in missing]
            results.append(mean.flatten())
        steps.append(torch.cat(results))
    return [torch.stack(steps)] * case.ranks


FORGETS = "what was missing before is forgotten"
MEANT = "the mean is subtracted, and not what this rank sent"
SHAPE = "names of one shape share what is missing"
SUM = "when the sum over the ranks is subtracted, and not what this rank sent"
MISTAKES: dict[str, dict[str, bool]] = {
    f"when {FORGETS}": {"forgets": True},
    f"when {MEANT}": {"minus_mean": True},
    f"when {SHAPE}": {"by_shape": True},
    f"when {FORGETS}, and {MEANT}": {"forgets": True, "minus_mean": True},
    f"when {FORGETS}, and {SHAPE}": {"forgets": True, "by_shape": True},
    f"when {MEANT}, and {SHAPE}": {"minus_mean": True, "by_shape": True},
    "when all three faults are still there": {"forgets": True, "minus_mean": True, "by_shape": True},
    "when nothing of what is missing is added later": {"feedback": False},
    "when the sum over the ranks is not divided by their number": {"divide": False},
    "when what is missing is added after the compression": {"late": True},
    "when the first gradient is kept and not copied, and the caller writes other numbers into it": {
        "not_copied": True
    },
    "when what is missing is averaged over the ranks": {"one_for_all_ranks": True},
    SUM: {"minus_sum": True},
    f"{SUM}, and {FORGETS}": {"minus_sum": True, "forgets": True},
    "when what this rank sent is divided by the number of ranks before it is subtracted": {
        "minus_share": True
    },
    "when what was missing before is added to the new rest, which holds it already": {"piled": True},
}
TASKS = {
    "when the sum over the ranks is not divided by their number": "It returns the mean over the ranks",
    "when what is missing is added after the compression": "A rank sends `compress(gradient + missing)`.",
    "when the first gradient is kept and not copied, and the caller writes other numbers into it": (
        "The caller may write other numbers into it after the call."
    ),
    f"when {SHAPE}": "several names may have the same shape",
}


def _second_message(payloads: Sequence[int]) -> str:
    """What the second message of a call carries, as far as its size tells it."""
    if len(payloads) < 2 or payloads[1] < payloads[0]:
        return "when a second message carries less than the gradient: no rank needs more than the sum of what was sent"
    return "when a second tensor of this size is sent: what is missing stays on its rank"


@check
def check_19_2(report: Report, feedback: type) -> None:
    for case in CASES:
        with report.case(str(case)):
            seed = report.seed()
            results, drawn = on_ranks(run, case.ranks, (feedback, case, seed), 30), gradients(case, seed)
            report.on_every_rank(
                f"the means of {case.steps} steps",
                [result["means"] for result in results],
                means(case, drawn),
                mistakes={text: partial(means, **settings) for text, settings in MISTAKES.items()},
                given=(case, drawn),
                task=MISSING,
                tasks=TASKS,
            )
            report.true(
                all(result["kept"] for result in results),
                "the gradients are as they were",
                "`gradient` has other values than before",
                task="`gradient` stays as it is.",
            )
            payloads = max((result["messages"] for result in results), key=len)
            report.at_most(
                "messages of a call",
                len(payloads),
                1,
                mistakes={_second_message(payloads): len(payloads)},
                task="one all-reduce in each call, and no other message",
            )
