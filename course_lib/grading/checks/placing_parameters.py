"""Checks of chapter 01 on where parameters sit: bytes by prefix, and a balanced plan over BERT."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn

from course_lib.grading.parameter_copies import ParameterCopies
from course_lib.grading.report import Report, check
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.resnet import ResNet18
from course_lib.observe.networks.placement import size_of


def _bytes_by_prefix(
    named: Iterable[tuple[str, Tensor]], depth: int, *, size: int = 0, own: int = 1
) -> dict[str, int]:
    """Bytes by prefix; ``size`` of an element (0: its real one), ``own``: how many last parts are no prefix."""
    total: dict[str, int] = {}
    for name, p in named:
        parts = name.split(".")
        prefix = ".".join(parts[: len(parts) - own][:depth])
        total[prefix] = total.get(prefix, 0) + p.numel() * (size or p.element_size())
    return total


@check
def check_01_2(report: Report, bytes_by_prefix: Callable) -> None:
    mixed = GPT(GPTConfig.tiny(num_layers=2))
    mixed.blocks[0].to(torch.bfloat16)
    tied = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    cases = {
        "ResNet-18": (ResNet18(10, 1, width=8), (1, 2, 3)),
        "GPT, its word matrix tied, a block in bfloat16": (mixed, (1, 2, 9)),
        "two layers with one weight": (tied, (1,)),
    }
    for name, (model, depths) in cases.items():
        for depth in depths:
            report.case(f"{name}, depth {depth}")
            named = list(model.named_parameters())
            want = _bytes_by_prefix(named, depth)
            got = bytes_by_prefix(model, depth)
            twice = model.named_parameters(remove_duplicate=False)
            report.equal(
                f"bytes of {len(want)} prefixes",
                _without_empty(got),
                want,
                mistakes={
                    "a tied parameter is counted under each of its names": _bytes_by_prefix(twice, depth),
                    "not every parameter has 4 bytes: ask element_size()": _bytes_by_prefix(
                        named, depth, size=4
                    ),
                    "the parameter's own name (`weight`) is no part of the prefix": _bytes_by_prefix(
                        named, depth, own=0
                    ),
                    "buffers (BatchNorm's statistics) are no parameters": _bytes_by_prefix(
                        [*named, *model.named_buffers()], depth
                    ),
                },
            )
    report.case("BERT-large on the device meta, which has no data")
    with torch.device("meta"):
        large = Bert(
            BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
        )
    with ParameterCopies(large) as copies:
        got = bytes_by_prefix(large, 1)
    report.equal("bytes", got, _bytes_by_prefix(large.named_parameters(), 1))
    report.at_most(
        "bytes copied to count them",
        copies.bytes,
        0,
        likely="numel() and element_size() say it without a copy",
    )


def _without_empty(got: object) -> object:
    return {k: v for k, v in got.items() if v} if isinstance(got, dict) else got


def _units(model: Bert) -> list[str]:
    layers = [f"encoder.layer.{i}" for i in range(len(model.encoder.layer))]
    return ["embeddings", *layers] + (["pooler"] if model.pooler is not None else [])


def _lightest_heaviest(sizes: list[int], ranks: int) -> int:
    """The least that the heaviest of ``ranks`` runs of neighbours can weigh, by dynamic programming."""
    sums = [0]
    for size in sizes:
        sums.append(sums[-1] + size)
    best = dict(enumerate(sums))  # of the first n units on one rank
    for _ in range(ranks - 1):
        best = {
            n: min((max(best[m], sums[n] - sums[m]) for m in range(n) if m in best and m), default=sums[-1])
            for n in range(1, len(sums))
        }
    return best[len(sizes)]


@check
def check_01_3(report: Report, balanced_placement: Callable) -> None:
    wide_words = {"vocab_size": 4000, "num_hidden_layers": 8}
    long_words = {"vocab_size": 400, "num_hidden_layers": 5, "hidden_size": 48, "num_attention_heads": 3}
    models = {
        "8 layers, 4,000 words": (BertConfig.tiny(**wide_words), False, (1, 2, 3, 5)),
        "8 layers, 4,000 words, a pooler": (BertConfig.tiny(**wide_words), True, (2, 4, 10)),
        "5 layers, 400 words, a pooler": (BertConfig.tiny(**long_words), True, (2, 3, 4, 6)),
        "11 layers, 12,000 words": (
            BertConfig.tiny(vocab_size=12000, num_hidden_layers=11),
            False,
            (4, 7, 12),
        ),
    }
    for name, (config, pooler, counts) in models.items():
        model = Bert(config, pooler=pooler)
        units = _units(model)
        sizes = [size_of(model.get_submodule(unit).parameters()) for unit in units]
        for ranks in counts:
            report.case(f"{name}, {ranks} rank{'s' * (ranks > 1)}")
            got = balanced_placement(model, ranks)
            if not isinstance(got, dict):
                report.fail(
                    f"got {type(got).__name__}, expected a dict from module name to rank",
                    "a `return` is missing?" if got is None else None,
                )
            missing = [unit for unit in units if unit not in got]
            likely = "BERT may have a pooler: model.pooler is not None" if missing == ["pooler"] else None
            if missing:
                report.fail(f"{', '.join(missing)} is not placed", likely)
            plan = [got[unit] for unit in units]
            steps = {after - before for before, after in pairwise(plan)}
            if plan[0] != 0 or not steps <= {0, 1}:
                report.fail(
                    f"in the order of computation, the parts are on ranks {plan}",
                    "a rank holds neighbours, the embeddings are on rank 0: no activation travels back",
                )
            if len(set(plan)) != ranks:
                report.fail(
                    f"{len(set(plan))} of {ranks} ranks hold something",
                    "leave at least one part for each rank still to come",
                )
            held = [sum(s for s, r in zip(sizes, plan, strict=True) if r == rank) for rank in range(ranks)]
            report.at_most(
                "bytes on the heaviest rank",
                max(held),
                _lightest_heaviest(sizes, ranks),
                likely="the embeddings count as well: weigh, do not count layers"
                if _is_even(plan, ranks)
                else "filling up to the average overshoots or starves the last: try limits, from the smallest up",
            )


def _is_even(plan: list[int], ranks: int) -> bool:
    layers = [plan.count(rank) for rank in range(ranks)]
    return max(layers) - min(layers) <= 2
