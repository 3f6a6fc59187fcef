"""The check of chapter 01 on where parameters sit, bytes by prefix, and what comes out of likely mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from course_lib.grading.parameter_copies import ParameterCopies
from course_lib.grading.report import Report, check
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.resnet import ResNet18


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
    "when a tied parameter is counted under its last name": lambda model, depth: _bytes_by_prefix(
        [(name, p) for p, name in {p: n for n, p in _all_names(model)}.items()], depth
    ),
    "when parameters are told apart by `data_ptr()`, which is 0 for every tensor on the device meta": (
        lambda model, depth: _bytes_by_prefix(_told_apart(model, lambda p: p.data_ptr()), depth)
    ),
    "when parameters that are views of one tensor are taken for one parameter": (
        lambda model, depth: _bytes_by_prefix(_told_apart(model, lambda p: p.untyped_storage()._cdata), depth)
    ),
    "when a parameter is counted once for each module that it lies in": lambda model, depth: _add_up(
        (".".join(name.split(".")[:depth]), p)
        for name, module in model.named_modules()
        for p in module.parameters()
    ),
    "when a prefix of fewer parts counts what its longer prefixes count, too": lambda model, depth: _add_up(
        (name, p)
        for name, module in model.named_modules()
        if len(name.split(".")) <= depth
        for p in module.parameters()
    ),
    "when a prefix of fewer parts counts what its longer prefixes count, too, and the model itself is left out": (
        lambda model, depth: _add_up(
            (name, p)
            for name, module in model.named_modules()
            if name and len(name.split(".")) <= depth
            for p in module.parameters()
        )
    ),
    "when a prefix takes every name that begins with it, as `1` then takes what belongs to `10`": (
        lambda model, depth: _by_beginning(model, depth)
    ),
    "when parameters of a module that has children are left out": lambda model, depth: _bytes_by_prefix(
        [
            (name, p)
            for name, p in model.named_parameters()
            if not list(model.get_submodule(name.rpartition(".")[0]).children())
        ],
        depth,
    ),
}


def _by_beginning(model: nn.Module, depth: int) -> dict[str, int]:
    """Every prefix takes all names that begin with its letters; the model itself takes only its own parameters."""
    return _add_up(
        (prefix, p)
        for prefix in _bytes_by_prefix(model.named_parameters(), depth)
        for name, p in model.named_parameters()
        if (name.startswith(prefix) if prefix else "." not in name)
    )


def _all_names(model: nn.Module) -> list[tuple[str, Tensor]]:
    return list(model.named_parameters(remove_duplicate=False))


def _told_apart(model: nn.Module, mark: Callable[[Tensor], int]) -> list[tuple[str, Tensor]]:
    """The named parameters without those whose mark was seen before."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, p in model.named_parameters():
        first.setdefault(mark(p), (name, p))
    return list(first.values())


def _add_up(prefixed: Iterable[tuple[str, Tensor]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for prefix, p in prefixed:
        total[prefix] = total.get(prefix, 0) + p.numel() * p.element_size()
    return total


def _of_storages(model: nn.Module, depth: int) -> dict[str, int]:
    total: dict[str, int] = {}
    for name, p in model.named_parameters():
        prefix = ".".join(name.split(".")[:-1][:depth])
        total[prefix] = total.get(prefix, 0) + p.untyped_storage().nbytes()
    return total


def _stacked() -> nn.Module:
    """Two layers whose weights are rows of one tensor, a bias that is frozen, and a parameter of the model itself."""
    together = torch.zeros(20, 6)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4))
    model[0].weight, model[1].weight = nn.Parameter(together[:6]), nn.Parameter(together[6:10])
    model[1].bias.requires_grad_(False)
    model.register_parameter("gain", nn.Parameter(torch.ones(1)))
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
        "eleven layers in a row": (nn.Sequential(*(nn.Linear(2, n) for n in range(1, 12))), (1,)),
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
