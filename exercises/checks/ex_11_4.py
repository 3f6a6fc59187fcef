"""11.4: PyTorch's own pipeline on microbatches with unequal numbers of targets, on real ranks."""

import random

import torch
import torch.distributed as dist
from course_checks.on_ranks import count, on_ranks
from course_checks.pipeline_stages import WORDS, counting, stage
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.runtime.fork_server import preload

preload("torch.distributed.pipelining")  # it takes a second and a half to import
SEQ = 5
EQUAL = "PyTorch's stages need equal microbatches. You may add rows that change nothing."
MEAN = "Afterwards `parameter.grad` of every parameter of `module` is the…"
FACTS = {
    "gradients": Fact("the gradient of {}", MEAN, tolerance=1e-5, each="rank"),
    "loss": Fact("the loss", "On the last rank the mean loss is returned…", tolerance=1e-5, each="rank"),
    "kept": Fact("inputs", "`tokens` and `targets` keep their values.", each="rank"),
    "idle": Fact("microbatches at once", "On rank r the first…", each="rank"),
    "more": Fact("microbatches at once beyond what a rank may have", "on rank r, at most `ranks -…", most=0),
}

# silent: rows of which no target counts, the last ones
Case = record(
    "ranks rows microbatches silent",
    lambda c: (
        f"{count(c.ranks)}, {c.rows} rows in {c.microbatches} microbatches"
        + f", {count(c.silent, 'row')} without targets" * bool(c.silent)
    ),
    task=None,
)
CASES = [
    Case(*case, EQUAL if case[1] % case[2] else None)
    for case in [(2, 8, 4, 0), (3, 6, 6, 1), (2, 7, 3, 0), (3, 5, 4, 2), (1, 3, 2, 0)]
]


def batch(case: Case) -> tuple[Tensor, Tensor]:
    """Texts of unequal length: behind the end of each one the targets do not count."""
    draw, generator = random.Random(case.seed), torch.Generator().manual_seed(case.seed)
    tokens, targets = torch.randint(WORDS, (2, case.rows, SEQ), generator=generator)
    some = [draw.randint(1, SEQ) for _ in range(case.rows - 2 - case.silent)]
    lengths = [1, SEQ, *some, *[0] * case.silent]
    for row, length in zip(targets, lengths, strict=True):
        row[length:] = -100
    return tokens, targets


@on_ranks(FACTS, quiet=True)
def observe(answer, case: Case) -> dict:
    rank, begun, given = dist.get_rank(), {"now": 0, "most": 0}, batch(case)
    tokens, targets = (tensor.clone() for tensor in given)
    module = stage(rank, case.ranks)
    module.register_forward_hook(counting(begun))
    loss = answer(module, tokens, targets, case.microbatches)
    loss = 0.0 if rank < case.ranks - 1 else loss  # what other ranks return does not matter
    most, may = begun["most"], case.ranks - rank
    said = f"at most {most} of {case.microbatches} microbatches at once: the ranks do not work side by side"
    kept = tokens.equal(given[0]) and targets.equal(given[1])
    return {
        "gradients": {name: p.grad for name, p in module.named_parameters()},
        "loss": loss.detach() if isinstance(loss, Tensor) else loss,
        "kept": "" if kept else "`tokens` or `targets` have other values afterwards",
        "idle": said if most < min(may, case.microbatches) else "",
        "more": most - may,
    }
