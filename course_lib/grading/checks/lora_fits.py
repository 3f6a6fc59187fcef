"""The check of 17.4: LoRA in as many upper layers as fit under a cap."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.finetuning.freeze import mark_only_as_trainable
from course_lib.finetuning.lora_apply import apply_lora, lora_layers, mark_only_lora_as_trainable
from course_lib.grading.report import Report, check
from course_lib.models.bert import Bert, BertClassifier, BertConfig

RANK, ALPHA = 4, 8
Adapt = Callable[[BertClassifier, Tensor, int], int]


class Kept(saved_tensors_hooks):
    """Counts the bytes of the storages that autograd keeps, those of ``own`` left out."""

    def __init__(self, own: Iterable[Tensor]) -> None:
        self.own = {t.untyped_storage().data_ptr() for t in own}
        self.storages: dict[int, torch.UntypedStorage] = {}  # held, so that no other gets the address
        super().__init__(self._pack, lambda t: t)

    def __enter__(self) -> Kept:
        super().__enter__()
        return self

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.own:
            self.storages[storage.data_ptr()] = storage
        return tensor

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


def _model(layers: int, classes: int) -> BertClassifier:
    config = BertConfig.tiny(vocab_size=60, hidden_size=32, num_hidden_layers=layers, intermediate_size=128)
    return BertClassifier(Bert(config, pooler=True), classes).train()


class Parts(NamedTuple):
    """What training adds: trained numbers, how many of them are the classifier's, and bytes kept for backward."""

    trained: int
    head: int
    kept: int

    def bytes(self, *, each: int = 16, kept: bool = True, head: bool = True) -> int:
        return each * (self.trained - (0 if head else self.head)) + (self.kept if kept else 0)


def _parts(model: BertClassifier, tokens: Tensor) -> Parts:
    with Kept((*model.parameters(), *model.buffers())) as saved:
        model(tokens)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Parts(trained, sum(p.numel() for p in model.classifier.parameters()), saved.bytes)


def _adapted(model: BertClassifier, n: int) -> BertClassifier:
    model, layers = copy.deepcopy(model), len(model.bert.encoder.layer)
    if n:
        names = [
            f"layer.{i}.attention.self.{name}"
            for i in range(layers - n, layers)
            for name in ("query", "value")
        ]
        apply_lora(model.bert, names, rank=RANK, alpha=ALPHA)
        mark_only_lora_as_trainable(model, also=["classifier"])
    else:
        mark_only_as_trainable(model, ["classifier"])
    return model


@check
def check_17_4(report: Report, adapt: Adapt) -> None:
    torch.manual_seed(report.seed())
    for layers, fits, spare, shape, classes in (
        (9, 2, 0, (4, 12), 650),  # so many that each of the wrong counts below gives another number of layers
        (4, 2, 0, (4, 12), 3),
        (4, 3, -1, (4, 12), 3),
        (3, 3, 10**9, (2, 20), 3),
        (3, 0, 0, (4, 12), 3),
        (5, 1, 1000, (6, 8), 3),
        (2, 1, 0, (1, 1), 3),
    ):
        more = ", almost for one more" if spare < 0 else " and a little more" if 0 < spare < 10**6 else ""
        many = f", {classes} classes" if classes > 3 else ""
        with report.case(f"{layers} layers, room for {fits}{more}{many}"):
            _try(report, adapt, _model(layers, classes), fits, spare, shape)


def _try(
    report: Report, adapt: Adapt, model: BertClassifier, fits: int, spare: int, shape: tuple[int, int]
) -> None:
    plain, tokens, layers = copy.deepcopy(model), torch.randint(60, shape), len(model.bert.encoder.layer)
    parts = [_parts(_adapted(plain, n), tokens) for n in range(layers + 1)]
    cap = parts[fits].bytes() + spare if spare >= 0 else parts[fits + 1].bytes() - 1
    before = {id(p): p.detach().clone() for p in model.parameters()}
    pretrained = list(model.bert.parameters())
    got = adapt(model, tokens, cap)
    report.true(got is not None, "a number is returned", "`adapt` returns None", task="It returns $n$.")
    adapted = sorted(lora_layers(model))
    places = {int(name.split("layer.")[1].split(".")[0]) for name in adapted}
    n = len(places)
    report.true(
        places == set(range(layers - n, layers)),
        "the adapted layers are the last ones",
        f"the adapted layers are {sorted(places)}, counted from 0, of {layers}",
        got="first" if n and places == set(range(n)) else None,
        mistakes={"when the first layers are adapted in place of the last": "first"},
        given=(),
        task="It puts LoRA of rank 4 (with alpha 8) beside the `query` and the `value` of the last $n$ layers of "
        "`model.bert`.",
    )
    wanted = sorted(
        f"bert.encoder.layer.{i}.attention.self.{name}" for i in places for name in ("query", "value")
    )
    settings = {(x.config.rank, x.config.alpha) for x in lora_layers(model).values()} - {(RANK, ALPHA)}
    report.true(
        adapted == wanted and not settings,
        "query and value have a LoRA of rank 4 and alpha 8",
        f"there is a LoRA at {', '.join(adapted)}"
        if adapted != wanted
        else "".join(f"a LoRA has rank {rank} and alpha {alpha:g}" for rank, alpha in sorted(settings)[:1]),
        task="It puts LoRA of rank 4 (with alpha 8) beside the `query` and the `value` of the last $n$ layers of "
        "`model.bert`.",
    )
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    right = {name for name, p in _adapted(plain, n).named_parameters() if p.requires_grad}
    report.true(
        trained == right,
        "A, B and the classifier are trained, and nothing else",
        _differ(trained, right)
        if adapted or len(trained) < len(before)
        else "`model` is as it was: it has no LoRA, and all of its parameters are trained",
        task="Then it trains these $A$ and $B$ and the `classifier`, and freezes everything else.",
    )
    same = all(torch.equal(p, before[id(p)]) for p in pretrained)
    report.true(
        same,
        "the pretrained parameters are as they were",
        "pretrained parameters have other values",
        task="The pretrained parameters keep their values.",
    )
    # Where all layers fit, these two mistakes give what is right.
    too_many = (
        {"when one more layer is adapted than the number that is returned": n - 1} if fits < layers else {}
    )
    if n == layers > fits:
        too_many["when all layers are adapted, and not only as many as the number that is returned"] = got
    report.equal("the number returned", got, n, mistakes=too_many, given=(), task="It returns $n$.")
    needed = _parts(model, tokens).bytes()
    report.true(
        needed <= cap,
        "what training adds fits under the cap",
        f"training adds {needed:,} bytes with {n} layers, and the cap is {cap:,}",
        got=n,
        mistakes={s: _most(parts, cap, **f) for s, f in TOO_MANY.items()},
        given=(),
        task="What training adds may take at most `cap` bytes",
    )
    report.at_most(
        "adapted layers missing",
        fits - n,
        0,
        mistakes=_too_few(parts, cap, _parts(plain, tokens)),
        given=(),
        task="$n$ is as large as possible.",
    )


TOO_MANY = {
    "when the activations are not counted": {"kept": False},
    "when the numbers of the classifier are not counted": {"head": False},
    "when only the gradients and the moments are counted, and not the new numbers themselves": {"each": 12},
    "when only the moments are counted besides the activations": {"each": 8},
    "when only the numbers themselves are counted besides the activations": {"each": 4},
    "when only the activations are counted": {"each": 0},
}


def _too_few(parts: list[Parts], cap: int, plain: Parts) -> dict[str, int]:
    """How many layers are missing by each mistake; ``plain`` is the model without LoRA, in which all is trained."""
    fits, everything = _most(parts, cap), [part._replace(kept=plain.kept) for part in parts]
    all_numbers = [part._replace(trained=part.trained - part.head + plain.trained) for part in parts]
    return {
        "when a sum that is equal to the cap is taken as too large": fits - _most(parts, cap - 1),
        "when LoRA in all layers is never tried": int(fits == len(parts) - 1),
        "when no layer is adapted, whatever the cap is": fits,
        "when the activations of the model without LoRA are counted, in which everything is trained": fits
        - _most(everything, cap),
        "when frozen parameters take 16 bytes, too": fits - _most(all_numbers, cap),
    }


def _most(parts: list[Parts], cap: int, **counted: int | bool) -> int:
    return max(n for n, each in enumerate(parts) if n == 0 or each.bytes(**counted) <= cap)


def _differ(trained: set[str], right: set[str]) -> str:
    if more := sorted(trained - right):
        return f"{more[0]} is trained" + (f", and {len(more) - 1} more" if len(more) > 1 else "")
    missing = sorted(right - trained)
    return f"{missing[0]} is frozen" if missing else "as it should be"
