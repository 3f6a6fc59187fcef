"""The check of chapter 01 on cutting BERT into stages, and what comes out of likely mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, combinations, pairwise

import torch

from course_lib.grading.report import Report, check
from course_lib.models.bert import Bert, BertConfig
from course_lib.observe.networks.placement import size_of

Ranks = list[int]  # of the parts, in the order of computation
Slip = Callable[[Sequence[int], int], Ranks]


def _parts(model: Bert) -> list[str]:
    layers = [f"encoder.layer.{i}" for i in range(len(model.encoder.layer))]
    return ["embeddings", *layers] + (["pooler"] if model.pooler is not None else [])


def _lightest_heaviest(sizes: Sequence[int], ranks: int) -> int:
    """The least that the heaviest of ``ranks`` runs of neighbours can weigh, by dynamic programming."""
    sums = [0, *accumulate(sizes)]
    best = dict(enumerate(sums))  # of the first n parts on one rank
    for _ in range(ranks - 1):
        best = {
            n: min((max(best[m], sums[n] - sums[m]) for m in range(n) if m in best and m), default=sums[-1])
            for n in range(1, len(sums))
        }
    return best[len(sizes)]


def _heaviest(sizes: Sequence[int], plan: Ranks) -> int:
    held = dict.fromkeys(plan, 0)
    for size, rank in zip(sizes, plan, strict=True):
        held[rank] += size
    return max(held.values())


def _heaviest_by(slip: Slip, sizes: Sequence[int], ranks: int) -> int:
    return _heaviest(sizes, slip(sizes, ranks))


def _filled(
    sizes: Sequence[int], limit: float, last: int, *, keep: bool = False, past: bool = False
) -> Ranks:
    """Fill rank after rank up to the limit, and put the rest on rank ``last``.

    ``keep``: keep a part for every rank that follows. ``past``: a rank ends with the part that reaches the limit.
    """
    plan, rank, held = [], 0, 0
    for i, size in enumerate(sizes):
        full = held >= limit if past else held + size > limit
        needed = keep and len(sizes) - i <= last - rank
        if held and rank < last and (full or needed):
            rank, held = rank + 1, 0
        plan.append(rank)
        held += size
    return plan


def _heaviest_first(sizes: Sequence[int], ranks: int) -> Ranks:
    """The heaviest part that is left goes to the rank that holds least, wherever it stands in the model."""
    held, plan = [0] * ranks, [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: sizes[i], reverse=True):
        plan[i] = held.index(min(held))
        held[plan[i]] += sizes[i]
    return plan


def _most_equal(sizes: Sequence[int], ranks: int) -> Ranks:
    """The plan of neighbours in which the heaviest and the lightest rank differ least, by trying all."""
    sums = [0, *accumulate(sizes)]

    def spread(cuts: tuple[int, ...]) -> int:
        held = [sums[end] - sums[start] for start, end in pairwise((0, *cuts, len(sizes)))]
        return max(held) - min(held)

    best = min(combinations(range(1, len(sizes)), ranks - 1), key=spread)
    return [sum(i >= cut for cut in best) for i in range(len(sizes))]


# ---- mistakes: what they make of the parts' sizes, in each of the three facts ------------------------------------

SCATTERED: dict[str, Slip] = {
    "when the heaviest part that is left goes to the lightest rank, wherever it stands in the model": _heaviest_first,
    "when the parts are dealt out in turn, one to each rank": lambda s, r: [i % r for i in range(len(s))],
}
EMPTY: dict[str, Slip] = {
    "when ranks are filled up to the best limit, and no part is kept for the ranks at the end": (
        lambda s, r: _filled(s, _lightest_heaviest(s, r), len(s))
    ),
    "when ranks are filled up to the average, and the last rank is full like any other": (
        lambda s, r: _filled(s, sum(s) / r, len(s))
    ),
    "when each rank takes parts until it has reached the average": (
        lambda s, r: _filled(s, sum(s) / r, r - 1, past=True)
    ),
    "when every rank takes as many parts as the number of parts divided by the ranks, rounded up": (
        lambda s, r: [i // -(-len(s) // r) for i in range(len(s))]
    ),
}
HEAVY: dict[str, Slip] = {
    "when parts are dealt out by their number, and not by their bytes": (
        lambda s, r: [i * r // len(s) for i in range(len(s))]
    ),
    "when every rank is filled up to the average": lambda s, r: _filled(s, sum(s) / r, r - 1, keep=True),
    "when each rank takes parts until it has reached the average": (
        lambda s, r: _filled(s, sum(s) / r, r - 1, keep=True, past=True)
    ),
    "when the ranks are made as equal as possible, and not the heaviest rank as light as possible": _most_equal,
}


def _numbering(plan: Ranks, ranks: int) -> dict[str, Ranks | None]:
    """Mistakes in the numbers of the ranks: the plan itself, where it has that mistake."""
    steps = {after - before for before, after in pairwise(plan)}
    return {
        "when the first rank is called 1, and not 0": plan if plan[0] == 1 and steps <= {0, 1} else None,
        "when the embeddings are on the last rank, and the last part is on rank 0": (
            plan if plan[0] == ranks - 1 and plan[-1] == 0 and steps <= {0, -1} else None
        ),
    }


@dataclass(frozen=True)
class Weighed:
    """One plan with the model that it is for: bytes and elements of its parts, in the order of computation."""

    parts: list[str]
    sizes: list[int]
    elements: list[int]
    ranks: int
    plan: Ranks

    def best_by(self, weights: Sequence[int], plan: Ranks) -> bool:
        """Whether no plan is better by these weights, or such weights cannot be cut into so many ranks at all."""
        if len(weights) < self.ranks:
            return True
        best = _lightest_heaviest(weights, self.ranks)
        return len(set(plan)) == self.ranks and _heaviest(weights, plan) == best

    def best_by_elements(self) -> bool:
        return self.best_by(self.elements, self.plan)

    def best_without_embeddings(self) -> bool:
        return self.best_by(self.sizes[1:], self.plan[1:])

    def best_without_pooler(self) -> bool:
        last = len(self.parts) - (self.parts[-1] == "pooler")
        return self.best_by(self.sizes[:last], self.plan[:last])


UNWEIGHED: dict[str, Callable[[Weighed], bool]] = {
    "when elements are counted and not bytes": Weighed.best_by_elements,
    "when the embeddings go to rank 0 after the other parts have been balanced without them": (
        Weighed.best_without_embeddings
    ),
    "when the pooler goes to the last rank after the other parts have been balanced without it": (
        Weighed.best_without_pooler
    ),
}


PARTS = "The parts are `embeddings`, every `encoder.layer.i`, and `pooler` where `model.pooler is not None`"


@check
def check_01_3(report: Report, balanced_placement: Callable) -> None:
    wide_words = {"vocab_size": 4000, "num_hidden_layers": 8}
    long_words = {"vocab_size": 400, "num_hidden_layers": 5, "hidden_size": 48, "num_attention_heads": 3}
    many = BertConfig.tiny(vocab_size=12000, num_hidden_layers=11)
    models = {
        "8 layers, 4,000 words": (BertConfig.tiny(**wide_words), False, (1, 2, 3, 5)),
        "8 layers, 4,000 words, a pooler": (BertConfig.tiny(**wide_words), True, (2, 4, 10)),
        "5 layers, 400 words, a pooler": (BertConfig.tiny(**long_words), True, (2, 3, 4, 6)),
        "11 layers, 12,000 words": (many, False, (4, 7, 12)),
        "8 layers, 4,000 words in bfloat16": (BertConfig.tiny(**wide_words), True, (2, 3)),
        "6 layers, two of them in bfloat16": (
            BertConfig.tiny(vocab_size=1200, num_hidden_layers=6),
            False,
            (3,),
        ),
    }
    judged: list[Weighed] = []
    for name, (config, pooler, counts) in models.items():
        model = Bert(config, pooler=pooler)
        if "words in bfloat16" in name:
            model.embeddings.to(torch.bfloat16)
        if "two of them in bfloat16" in name:
            model.encoder.layer[2:4].to(torch.bfloat16)
        for ranks in counts:
            with report.case(f"{name}, {ranks} rank{'s' * (ranks > 1)}"):
                _judge(report, judged, model, ranks, balanced_placement(model, ranks))


def _judge(report: Report, judged: list[Weighed], model: Bert, ranks: int, got: object) -> None:
    """The facts of one plan; ``judged`` are the plans before it, to which it is added."""
    parts = _parts(model)
    modules = [model.get_submodule(part) for part in parts]
    sizes = [size_of(module.parameters()) for module in modules]
    elements = [sum(p.numel() for p in module.parameters()) for module in modules]
    if not isinstance(got, dict):
        problem = f"got {type(got).__name__}, expected a dict from module name to rank"
        report.fail(problem, task="a dict from module names to ranks")
    missing = [part for part in parts if part not in got]
    if missing:
        report.fail(f"{', '.join(missing)} is not placed", task=PARTS)
    plan = [got[part] for part in parts]
    steps = {after - before for before, after in pairwise(plan)}
    report.true(
        plan[0] == 0 and steps <= {0, 1},
        "every rank holds neighbours",
        f"in the order of computation, the parts are on ranks {plan}",
        got=plan,
        mistakes={text: slip(sizes, ranks) for text, slip in SCATTERED.items()} | _numbering(plan, ranks),
        task="A rank holds neighbours in the order of computation",
    )
    used = len(set(plan))
    report.true(
        used == ranks,
        "every rank holds something",
        f"{used} of {ranks} ranks hold something"
        if used < ranks
        else f"the plan has {used} ranks, expected {ranks}",
        got=plan,
        mistakes={text: slip(sizes, ranks) for text, slip in EMPTY.items()},
        task="every rank holds at least one part"
        if used < ranks
        else "cuts a `Bert` into `ranks` pipeline stages",
    )
    judged.append(Weighed(parts, sizes, elements, ranks, plan))
    heaviest = _heaviest(sizes, plan)

    def unweighed(holds: Callable[[Weighed], bool]) -> int | None:  # asked at the end, of all plans
        return heaviest if all(map(holds, judged)) else None

    report.at_most(
        "bytes on the heaviest rank",
        heaviest,
        _lightest_heaviest(sizes, ranks),
        mistakes={text: partial(_heaviest_by, slip, sizes, ranks) for text, slip in HEAVY.items()}
        | {text: partial(unweighed, holds) for text, holds in UNWEIGHED.items()},
        given=(),
        task="the rank with the most bytes has as few bytes as any such plan allows",
    )
