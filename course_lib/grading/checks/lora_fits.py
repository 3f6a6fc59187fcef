"""The check of 17.4: LoRA in as many upper layers as fit under a cap."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.finetuning.freeze import mark_only_as_trainable
from course_lib.finetuning.lora_apply import apply_lora, lora_layers, mark_only_lora_as_trainable
from course_lib.grading.checks.lora_kept import Kept
from course_lib.grading.report import Report, check
from course_lib.models.bert import Bert, BertClassifier, BertConfig

RANK, ALPHA = 4, 8
Adapt = Callable[[BertClassifier, Tensor, int], int]


def _model(layers: int, width: int = 32, classes: int = 3) -> BertClassifier:
    config = BertConfig.tiny(
        vocab_size=60, hidden_size=width, num_hidden_layers=layers, intermediate_size=4 * width
    )
    return BertClassifier(Bert(config, pooler=True), classes).train()


def _needs(model: BertClassifier, tokens: Tensor, *, each: int = 16, kept: bool = True) -> int:
    """Bytes that training adds: for the trained numbers, and what autograd keeps."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    with Kept((*model.parameters(), *model.buffers())) as saved:
        model(tokens)
    return each * trained + (saved.bytes if kept else 0)


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
    for layers, fits, spare, shape in (
        (4, 2, 0, (4, 12)),
        (4, 3, -1, (4, 12)),
        (3, 3, 10**9, (2, 20)),
        (3, 0, 0, (4, 12)),
        (5, 1, 1000, (6, 8)),
        (2, 1, 0, (1, 1)),
    ):
        more = ", almost for one more" if spare < 0 else " and a little more" if 0 < spare < 10**6 else ""
        with report.case(f"{layers} layers, room for {fits}{more}"):
            _try(report, adapt, layers, fits, spare, shape)


def _try(report: Report, adapt: Adapt, layers: int, fits: int, spare: int, shape: tuple[int, int]) -> None:
    model, tokens = _model(layers), torch.randint(60, shape)
    needs = [_needs(_adapted(model, n), tokens) for n in range(layers + 1)]
    cap = needs[fits] + spare if spare >= 0 else needs[fits + 1] - 1
    before = {id(p): p.detach().clone() for p in model.parameters()}
    pretrained = list(model.bert.parameters())
    got = adapt(model, tokens, cap)
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
    settings = all((x.config.rank, x.config.alpha) == (RANK, ALPHA) for x in lora_layers(model).values())
    report.true(
        adapted == wanted and settings,
        "query and value have a LoRA of rank 4 and alpha 8",
        f"there is a LoRA at {', '.join(adapted)}"
        if adapted != wanted
        else "a LoRA has another rank or alpha",
        task="It puts LoRA of rank 4 (with alpha 8) beside the `query` and the `value` of the last $n$ layers of "
        "`model.bert`.",
    )
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    right = {name for name, p in _adapted(_model(layers), n).named_parameters() if p.requires_grad}
    report.true(
        trained == right,
        "A, B and the classifier are trained, and nothing else",
        _differ(trained, right),
        task="Then it trains these $A$ and $B$ and the `classifier`, and freezes everything else.",
    )
    same = all(torch.equal(p, before[id(p)]) for p in pretrained)
    report.true(
        same,
        "the pretrained parameters are as they were",
        "pretrained parameters have other values",
        task="The pretrained parameters keep their values.",
    )
    report.equal("the number returned is that of the adapted layers", got, n, task="It returns $n$.")
    needed = _needs(model, tokens)
    report.true(
        needed <= cap,
        "what training adds fits under the cap",
        f"training adds {needed:,} bytes with {n} layers, and the cap is {cap:,}",
        got=n,
        mistakes={s: lambda f=f: _most(_model(layers), tokens, cap, **f) for s, f in TOO_MANY.items()},
        given=(),
        task="What training adds may take at most `cap` bytes",
    )
    report.at_most(
        "adapted layers missing",
        fits - n,
        0,
        task="$n$ is as large as possible.",
    )


TOO_MANY = {
    "when the activations are not counted": {"kept": False},
    "when only the gradients and the moments are counted, and not the new numbers themselves": {"each": 12},
    "when only the moments are counted besides the activations": {"each": 8},
    "when only the numbers themselves are counted besides the activations": {"each": 4},
}


def _most(plain: BertClassifier, tokens: Tensor, cap: int, **counted: int | bool) -> int:
    layers = len(plain.bert.encoder.layer)
    return max(n for n in range(layers + 1) if n == 0 or _needs(_adapted(plain, n), tokens, **counted) <= cap)


def _differ(trained: set[str], right: set[str]) -> str:
    if more := sorted(trained - right):
        return f"{more[0]} is trained" + (f", and {len(more) - 1} more" if len(more) > 1 else "")
    missing = sorted(right - trained)
    return f"{missing[0]} is frozen" if missing else "as it should be"
