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


BYTES: dict[str, Callable[[nn.Module, int], dict[str, int]]] = {
    "when a tied parameter is counted under each of its names": lambda model, depth: _bytes_by_prefix(
        model.named_parameters(remove_duplicate=False), depth
    ),
    "when every element is taken to have 4 bytes": lambda model, depth: _bytes_by_prefix(
        model.named_parameters(), depth, size=4
    ),
    "when elements are counted and not bytes": lambda model, depth: _bytes_by_prefix(
        model.named_parameters(), depth, size=1
    ),
    "when the parameter's own name is taken as a part of the prefix": lambda model, depth: _bytes_by_prefix(
        model.named_parameters(), depth, own=0
    ),
    "when buffers are counted as parameters": lambda model, depth: _bytes_by_prefix(
        [*model.named_parameters(), *model.named_buffers()], depth
    ),
    "when frozen parameters are left out": lambda model, depth: _bytes_by_prefix(
        [(name, p) for name, p in model.named_parameters() if p.requires_grad], depth
    ),
    "when a parameter that is a view is counted with the whole tensor": lambda model, depth: _of_storages(
        model, depth
    ),
    "when prefixes have one part too many": lambda model, depth: _bytes_by_prefix(
        model.named_parameters(), depth + 1
    ),
}


def _of_storages(model: nn.Module, depth: int) -> dict[str, int]:
    total: dict[str, int] = {}
    for name, p in model.named_parameters():
        prefix = ".".join(name.split(".")[:-1][:depth])
        total[prefix] = total.get(prefix, 0) + p.untyped_storage().nbytes()
    return total


def _stacked() -> nn.Module:
    """Two layers whose weights are rows of one tensor, and a parameter of the model itself, which is frozen."""
    together = torch.zeros(20, 6)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4))
    model[0].weight, model[1].weight = nn.Parameter(together[:6]), nn.Parameter(together[6:10])
    model.register_parameter("gain", nn.Parameter(torch.ones(1), requires_grad=False))
    return model


@check
def check_01_2(report: Report, bytes_by_prefix: Callable) -> None:
    mixed = GPT(GPTConfig.tiny(num_layers=2))
    mixed.blocks[0].to(torch.bfloat16)
    tied = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    with torch.device("meta"):
        size = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
        large = Bert(BertConfig(num_hidden_layers=2, **size))
    cases = {
        "ResNet-18": (ResNet18(10, 1, width=8), (1, 2, 3)),
        "GPT, its word matrix tied, a block in bfloat16": (mixed, (1, 2, 9)),
        "two layers with one weight": (tied, (1,)),
        "weights that are views of one tensor, and a frozen parameter": (_stacked(), (1,)),
        "one linear layer": (nn.Linear(1, 1), (1,)),
        "a model without parameters": (nn.Tanh(), (1,)),
        "BERT with wide layers on the device meta": (large, (1, 3)),
    }
    for name, (model, depths) in cases.items():
        for depth in depths:
            with report.case(f"{name}, depth {depth}"):
                with ParameterCopies(model) as copies:
                    got = bytes_by_prefix(model, depth)
                want = _bytes_by_prefix(model.named_parameters(), depth)
                report.equal(
                    f"bytes by prefix, {len(want)} in all",
                    _without_empty(got),
                    want,
                    mistakes=BYTES,
                    given=(model, depth),
                    task="a dict from a prefix of module names to the bytes of the parameters below it",
                )
                task = "no parameter is copied"
                report.at_most("bytes of parameters copied", copies.bytes, 0, task=task)


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


def _equal_numbers(sizes: list[int], ranks: int) -> int:
    """The heaviest rank where each has the same number of parts."""
    return _heaviest(sizes, [i * ranks // len(sizes) for i in range(len(sizes))], ranks)


def _up_to_the_average(sizes: list[int], ranks: int) -> int:
    """The heaviest rank where each is filled for as long as it stays below the average."""
    average, plan, rank, held = sum(sizes) / ranks, [], 0, 0
    for i, size in enumerate(sizes):
        needed = len(sizes) - i <= ranks - 1 - rank
        if held and rank < ranks - 1 and (held + size > average or needed):
            rank, held = rank + 1, 0
        plan.append(rank)
        held += size
    return _heaviest(sizes, plan, ranks)


def _heaviest(sizes: list[int], plan: list[int], ranks: int) -> int:
    held = [0] * ranks
    for size, rank in zip(sizes, plan, strict=True):
        held[rank] += size
    return max(held)


HEAVIEST: dict[str, Callable[[list[int], int], int]] = {
    "when parts are dealt out by their number, and not by their bytes": _equal_numbers,
    "when every rank is filled up to the average": _up_to_the_average,
}


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
    }
    for name, (config, pooler, counts) in models.items():
        model = Bert(config, pooler=pooler)
        if "bfloat16" in name:
            model.embeddings.to(torch.bfloat16)
        units = _units(model)
        sizes = [size_of(model.get_submodule(unit).parameters()) for unit in units]
        for ranks in counts:
            with report.case(f"{name}, {ranks} rank{'s' * (ranks > 1)}"):
                got = balanced_placement(model, ranks)
                if not isinstance(got, dict):
                    problem = f"got {type(got).__name__}, expected a dict from module name to rank"
                    report.fail(problem, task="a dict from module names to ranks")
                missing = [unit for unit in units if unit not in got]
                if missing:
                    report.fail(f"{', '.join(missing)} is not placed", task=PARTS)
                plan = [got[unit] for unit in units]
                steps = {after - before for before, after in pairwise(plan)}
                task = "A rank holds neighbours in the order of computation"
                where = f"in the order of computation, the parts are on ranks {plan}"
                report.true(plan[0] == 0 and steps <= {0, 1}, "every rank holds neighbours", where, task=task)
                task = "every rank holds at least one part"
                held = f"{len(set(plan))} of {ranks} ranks hold something"
                report.true(len(set(plan)) == ranks, "every rank holds something", held, task=task)
                report.at_most(
                    "bytes on the heaviest rank",
                    _heaviest(sizes, plan, ranks),
                    _lightest_heaviest(sizes, ranks),
                    mistakes=HEAVIEST,
                    given=(sizes, ranks),
                    task="the rank with the most bytes has as few bytes as any such plan allows",
                )


PARTS = "The parts are `embeddings`, every `encoder.layer.i`, and `pooler` where `model.pooler is not None`"
