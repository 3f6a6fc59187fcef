"""The check of exercise 13.5: a loss of which each rank computes its own tokens, and its one fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.grading.checks.sequence_parallel_ranks import ON_CPU, groups_of, normal
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import launch as plain_launch
from course_lib.tensor_parallel.layers import f, g
from simulator.predict.collective_traffic import sent_bytes

NONE = -100  # the target of a token whose word is not predicted
WORDS, HIDDEN, BATCH = 11, 6, 2


def faulty_loss(x: Tensor, weight: Tensor, targets: Tensor, group: ProcessGroup) -> Tensor:
    logits = F.linear(x, f(weight, group))  # (batch, tokens of the rank, words)
    own = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    return g(own / group.size(), group)


class Divided(NamedTuple):
    """One call of ``mended_loss``.

    Args:
        xs, targets: those of each rank of the group.
        weight: (words, hidden).
        times: the loss is multiplied by this before backward.
    """

    xs: Sequence[Tensor]
    targets: Sequence[Tensor]
    weight: Tensor
    times: float = 1.0


def divided(seed: int, lengths: Sequence[int], counted: Sequence[int], times: float = 1.0) -> Divided:
    """Rank r has ``lengths[r]`` tokens of every sequence, and ``counted[r]`` of its tokens have a target."""
    generator, targets = torch.Generator().manual_seed(seed), []
    for length, many in zip(lengths, counted, strict=True):
        words = torch.randint(WORDS, (BATCH * length,), generator=generator)
        words[torch.randperm(len(words), generator=generator)[many:]] = NONE
        targets.append(words.view(BATCH, length))
    xs = [normal(seed + 1 + rank, BATCH, length, HIDDEN) for rank, length in enumerate(lengths)]
    return Divided(xs, targets, normal(seed, WORDS, HIDDEN), times)


# ---- what runs on the ranks -----------------------------------------------------------------------------------


def lost(answer: Callable[..., Tensor], cases: Sequence[Divided]) -> list[dict[str, Any]]:
    """What each call gave on this rank."""
    groups, found = groups_of(len(case.xs) for case in cases), []
    for case in cases:
        group = groups[len(case.xs)]
        me = group.rank()
        x, weight = case.xs[me].clone().requires_grad_(), case.weight.clone().requires_grad_()
        with record_traffic() as log:
            loss = answer(x, weight, case.targets[me].clone(), group)
            result = loss.detach().clone() if isinstance(loss, Tensor) else loss
            if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
                (case.times * loss).backward()
        no_tokens = x.grad is None and not x.numel()
        found.append(
            {
                "loss": result,
                "x": torch.zeros_like(x) if no_tokens else x.grad,
                "weight": weight.grad,
                "sent": log.traffic.sent,
            }
        )
    return found


# ---- what is right, and what goes wrong -----------------------------------------------------------------------


def on_one_device(
    case: Divided, factor: Callable[[Tensor, Tensor], Tensor] | None = None
) -> list[dict[str, Tensor]]:
    """What each rank should have; ``factor``, of the words and of the tokens of each rank, makes a mistake of it.

    The loss is the sum of the ranks' cross entropies (added up over words, not averaged), each times its factor.
    """
    counted = torch.tensor([float((t != NONE).sum()) for t in case.targets], dtype=torch.float64)
    tokens = torch.tensor([float(t.numel()) for t in case.targets], dtype=torch.float64)
    factors = (1 / counted.sum()).expand(len(case.xs)) if factor is None else factor(counted, tokens)
    xs, weight = [x.clone().requires_grad_() for x in case.xs], case.weight.clone().requires_grad_()
    owns = [
        k * F.cross_entropy((x @ weight.T).flatten(0, 1), t.flatten(), ignore_index=NONE, reduction="sum")
        for k, x, t in zip(factors, xs, case.targets, strict=True)
    ]
    alone = [torch.autograd.grad(case.times * own, weight, retain_graph=True)[0] for own in owns]
    loss = sum(owns)
    (case.times * loss).backward()
    return [
        {
            "loss": loss.detach(),
            "x": x.grad,
            "weight": weight.grad,
            "own loss": own.detach(),
            "own weight": own_weight,
        }
        for x, own, own_weight in zip(xs, owns, alone, strict=True)
    ]


FACTORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "when each rank takes the mean of its own words, and all means count equally": lambda words, tokens: (
        1 / (len(words) * words)
    ),
    "when each rank's mean is weighed by its tokens, and not by its words that are predicted": lambda words, tokens: (
        tokens / (tokens.sum() * words)
    ),
    "when the sum is divided by all tokens, also by those whose word is not predicted": lambda words, tokens: (
        torch.ones_like(words) / tokens.sum()
    ),
    "when the means of the ranks are added up": lambda words, tokens: 1 / words,
    "when the sum is not divided": lambda words, tokens: torch.ones_like(words),
    "when the loss is divided by the number of ranks once more": lambda words, tokens: (
        torch.ones_like(words) / (len(words) * words.sum())
    ),
}
# these differ from others only where a rank has no word
WITHOUT_A_WORD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "when a rank without a word that is predicted counts as one word": lambda words, tokens: (
        torch.ones_like(words) / words.clamp(min=1).sum()
    ),
    "when the means count equally, and a rank without a word is left out": lambda words, tokens: torch.where(
        words > 0, 1 / ((words > 0).sum() * words), 0
    ),
    "when the means count equally, and a rank without a word counts with a loss of 0": lambda words, tokens: (
        torch.where(words > 0, 1 / (len(words) * words), 0)
    ),
    "when a rank without a word that is predicted divides 0 by 0": lambda words, tokens: (
        words / (words.sum() * words)
    ),
}
ALL_RANKS = "when the words are counted on all ranks, and not only on those of `group`"
OWN_LOSS = "when each rank returns its own addend of the loss"
OWN_WEIGHT = "when the gradient of `weight` is not added up over the ranks"
LOSS_TIMES_RANKS = "when the loss is multiplied by the number of ranks"
WEIGHT_TWICE = "when the gradient of `weight` is added up over the ranks twice"
NO_WORD_COUNTS = "when a token whose word is not predicted counts as if its word were number 0"
TIMES_RANKS = "when backward, too, adds up the gradient of the loss over the ranks"


def _picked(key: str, factor: Callable[[Tensor, Tensor], Tensor] | None, case: Divided) -> list[Tensor]:
    return [rank[key] for rank in on_one_device(case, factor)]


def _times_ranks(key: str, case: Divided) -> list[Tensor]:
    return [len(case.xs) * rank[key] for rank in on_one_device(case)]


def _no_word_counts(key: str, case: Divided) -> list[Tensor]:
    """The loss and the gradients where a token without a word has word 0, and the divisor is right."""
    counted = sum(int((t != NONE).sum()) for t in case.targets)
    all_words = case._replace(targets=[t.clamp(min=0) for t in case.targets])
    return [rank[key] for rank in on_one_device(all_words, lambda words, _: torch.ones_like(words) / counted)]


def mistakes_of(key: str, groups: int, all_have_words: bool) -> dict[str, Callable[[Divided], list[Tensor]]]:
    """Programs that give a loss, or a gradient, on every rank.

    Args:
        groups: how many groups compute the same case at the same time, each for itself.
        all_have_words: every rank has a word that is predicted, so some mistakes cannot be told from others.
    """
    factors = FACTORS | ({} if all_have_words else WITHOUT_A_WORD)
    factors[ALL_RANKS] = lambda words, tokens: torch.ones_like(words) / (groups * words.sum())
    programs = {sentence: partial(_picked, key, factor) for sentence, factor in factors.items()}
    if key != "x":
        programs[OWN_LOSS if key == "loss" else OWN_WEIGHT] = partial(_picked, f"own {key}", None)
    programs[NO_WORD_COUNTS] = partial(_no_word_counts, key)
    # a case ends at its first wrong fact: where `weight` is looked at, the loss and the gradient of `x` are right
    name = {"loss": LOSS_TIMES_RANKS, "x": TIMES_RANKS, "weight": WEIGHT_TWICE}[key]
    programs[name] = partial(_times_ranks, key)
    return programs


# ---- the check --------------------------------------------------------------------------------------------------

# world -> case -> (tokens of each rank, words of each rank that are predicted)
SHARES = {
    2: {
        "2 ranks, 5 + 3 tokens, all words": ([5, 3], [10, 6]),
        "2 ranks, 4 + 4 tokens, all words": ([4, 4], [8, 8]),
        "2 ranks, 4 + 4 tokens, 2 + 5 words": ([4, 4], [2, 5]),
        "2 ranks, 6 + 0 tokens, 7 + 0 words": ([6, 0], [7, 0]),
        "a group of one rank": ([5], [4]),
    },
    3: {
        "3 ranks, 2 + 3 + 7 tokens, 1 + 4 + 2 words": ([2, 3, 7], [1, 4, 2]),
        "3 ranks, 4 + 4 + 1 tokens, 3 + 0 + 2 words": ([4, 4, 1], [3, 0, 2]),
    },
}
PARTS = {
    "loss": ("the loss", "computes what one device computes"),
    "x": ("gradient of `x`", "the gradient of `x` is that of one device, for the rank's own tokens"),
    "weight": ("gradient of `weight`", "the gradient of `weight` is that of one device, on every rank"),
}


@check
def check_13_5(report: Report, mended_loss: Callable[..., Tensor]) -> None:
    for world, shares in SHARES.items():
        cases = {
            name: divided(report.seed(), *share, times=3.0 if len(share[0]) == 3 else 1.0)
            for name, share in shares.items()
        }
        with report.case(f"{world} ranks"):
            found = launch(lost, world, args=(mended_loss, list(cases.values())), **ON_CPU)
            for i, (name, case) in enumerate(cases.items()):
                with report.case(name):
                    _check(report, case, [rank[i] for rank in found[: len(case.xs)]], world)


def _check(report: Report, case: Divided, found: list[dict[str, Any]], world: int) -> None:
    right, ranks = on_one_device(case), len(case.xs)
    for key, (fact, task) in PARTS.items():
        report.on_every_rank(
            fact,
            [rank[key] for rank in found],
            [rank[key] for rank in right],
            mistakes=mistakes_of(key, world // ranks, all((t != NONE).any() for t in case.targets)),
            given=(case,),
            task=task,
            thing="loss" if key == "loss" else fact,
        )
    limit = sent_bytes("all-reduce", case.weight.nbytes, ranks) + 100
    report.at_most(
        "bytes sent by a rank",
        round(max(rank["sent"] for rank in found)),
        round(limit),
        task="at most 100 bytes more than in one all-reduce of the gradient of `weight`",
    )


# ---- the table in front of the exercise ---------------------------------------------------------------------------


def measured_against_one_device(shares: Sequence[tuple[list[int], list[int]]]) -> list[list[str]]:
    """Rows of a table: what ``faulty_loss`` gives with these tokens and words of two ranks, and what is right."""
    cases = [divided(0, *share) for share in shares]
    found = plain_launch(lost, 2, args=(faulty_loss, cases), backend="gloo")[0]
    rows = []
    for (tokens, words), case, got in zip(shares, cases, found, strict=True):
        want = on_one_device(case)[0]
        who = [" + ".join(f"{BATCH * n}" for n in tokens), " + ".join(map(str, words))]
        numbers = [got["loss"], want["loss"], got["weight"].norm(), want["weight"].norm()]
        rows.append([*who, *(f"{number.item():.2f}" for number in numbers)])
    return rows
