"""The check of 17.5: a fine-tuning with four faults, and what comes out with each of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from course_lib.finetuning.lora_apply import apply_lora, lora_layers
from course_lib.grading.report import Report, check
from course_lib.models.bert import Bert, BertClassifier, BertConfig

Batch = tuple[Tensor, Tensor]


def faulty_finetune(
    model: BertClassifier, batches: Iterable[Batch], steps: int, rank: int, alpha: float, lr: float
) -> dict[str, Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0)
    apply_lora(model.bert, ["query", "value"], rank=rank, alpha=alpha)
    for name, p in model.named_parameters():
        p.requires_grad_("lora" in name)
    model.train()
    for tokens, labels in islice(batches, steps):
        loss = cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
    return {name: tensor for name, tensor in model.state_dict().items() if "lora" in name}


class Batches:
    """Batches that note the model when the first is taken: LoRA's first numbers are random."""

    def __init__(self, model: BertClassifier, data: list[Batch]) -> None:
        self.model, self.data, self.taken = model, data, 0
        self.start: BertClassifier | None = None

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.data:
            if self.start is None:
                self.start = copy.deepcopy(self.model)
                self.start.zero_grad()
            self.taken += 1
            yield batch


def _right(
    start: BertClassifier,
    data: list[Batch],
    steps: int,
    lr: float,
    *,
    trained: Callable[[str], bool] = lambda name: "lora_" in name or name.startswith("classifier"),
    updated: Callable[[str], bool] = lambda name: True,
    zero: bool = True,
    decay: float = 0.0,
    new: bool = False,
    reduction: str = "mean",
    kind: Callable[..., Any] = torch.optim.AdamW,
) -> dict[str, Tensor]:
    """All parameters after the steps; the settings make single faults of it."""
    model = copy.deepcopy(start).train()
    for name, p in model.named_parameters():
        p.requires_grad_(trained(name))
    chosen = [p for name, p in model.named_parameters() if trained(name) and updated(name)]
    if chosen:
        optimizer = kind(chosen, lr=lr, weight_decay=decay)
        for tokens, labels in data[:steps]:
            optimizer = kind(chosen, lr=lr, weight_decay=decay) if new else optimizer
            if zero:
                model.zero_grad()
            with torch.enable_grad():
                cross_entropy(model(tokens), labels, reduction=reduction).backward()
            optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


LORA = {"trained": lambda name: "lora_" in name}
OLD = {"updated": lambda name: "lora_" not in name}  # an optimizer made before LoRA
MISTAKES: dict[str, dict[str, Any]] = {
    "when the classifier is frozen": LORA,
    "when the optimizer was made before LoRA was applied, so that it does not update A and B": OLD,
    "when gradients are added to those of the batches before": {"zero": False},
    "when the classifier is frozen, and gradients are added to those of the batches before": LORA
    | {"zero": False},
    "when the optimizer was made before LoRA was applied, and gradients are added to those of the batches before": OLD
    | {"zero": False},
    "when neither A and B nor the classifier is updated": LORA | OLD,
    "when everything is trained": {"trained": lambda name: True},
    "when the weights decay as AdamW does by default": {"decay": 0.01},
    "when one step more is taken": {"more": 1},
    "when the biases of query and value are trained, too": {
        "trained": lambda name: (
            "lora_" in name or name.startswith("classifier") or name.endswith("base_layer.bias")
        )
    },
    "when a new optimizer is made for each step": {"new": True},
    "when the cross entropies of a batch are added up, and their mean is not taken": {"reduction": "sum"},
    "when the update is that of SGD": {"kind": torch.optim.SGD},
}
TRAINED = "Only $A$ and $B$ of every LoRA layer and the `classifier` are trained."
STEP = (
    "A step is one forward in training mode, the mean cross entropy, one backward, and one update by "
    "`torch.optim.AdamW` with `lr`, `weight_decay=0` and otherwise its defaults. Its gradients are those of one batch."
)


def _model(layers: int, classes: int) -> BertClassifier:
    config = BertConfig.tiny(vocab_size=50, hidden_size=16, num_hidden_layers=layers, intermediate_size=32)
    model = BertClassifier(Bert(config, pooler=True), classes)
    with torch.no_grad():
        for p in model.parameters():  # so large that some steps are seen in every number
            p.normal_(std=0.3) if p.dim() > 1 else None
    return model.double()  # so that the order of additions cannot be seen


@check
def check_17_5(report: Report, finetune: Callable[..., dict[str, Tensor]]) -> None:
    torch.manual_seed(report.seed())
    for layers, classes, steps, rank, alpha, evaluating in (
        (2, 3, 3, 2, 4, False),
        (1, 2, 1, 4, 4, False),
        (2, 4, 4, 1, 8, True),
        (1, 2, 0, 2, 2, False),
    ):
        name = f"{layers} layer{'s' * (layers > 1)}, {steps} step{'s' * (steps != 1)}, rank {rank}"
        with report.case(name + (", a model in evaluation mode" if evaluating else "")):
            model = _model(layers, classes).train(not evaluating)
            g = torch.Generator().manual_seed(report.seed())
            data = [
                (torch.randint(50, (6, 7), generator=g), torch.randint(classes, (6,), generator=g))
                for _ in range(steps + 2)
            ]
            _try(report, finetune, model, data, steps, rank, alpha)


def _try(
    report: Report,
    finetune: Callable[..., dict[str, Tensor]],
    model: BertClassifier,
    data: list[Batch],
    steps: int,
    rank: int,
    alpha: float,
) -> None:
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batches = Batches(model, data)
    lr = 0.01
    modes: list[bool] = []
    hook = model.register_forward_pre_hook(lambda module, inputs: modes.append(module.training))
    got = finetune(model, batches, steps, rank, alpha, lr)
    hook.remove()
    evaluated = modes.count(False)
    layers = lora_layers(model)
    count = 2 * len(model.bert.encoder.layer)
    other = {(x.config.rank, x.config.alpha) for x in layers.values()} - {(rank, alpha)}
    report.true(
        len(layers) == count and not other,
        "query and value of every layer have LoRA",
        f"{len(layers)} modules have LoRA, and query and value of every layer are {count}"
        if len(layers) != count
        else "".join(
            f"a LoRA has rank {r} and alpha {a:g}, not {rank} and {alpha}" for r, a in sorted(other)[:1]
        ),
        task="fine-tunes a `BertClassifier` with LoRA on the `query` and `value` of every layer",
    )
    report.true(
        steps <= batches.taken <= steps + 1,  # a loop may take one more before it ends
        "the batches of these steps are taken",
        f"{batches.taken} batches are taken for {steps} step{'s' * (steps != 1)}",
        task="take `steps` of them",
    )
    start = batches.start or model
    report.true(
        bool(lora_layers(start)),
        "LoRA is applied before the first batch is taken",
        "LoRA is applied after the first batch is taken",
        task="apply LoRA before you take the first one",
    )
    report.true(
        not evaluated,
        "every forward is in training mode",
        f"the model is in evaluation mode in {evaluated} of {len(modes)} forwards",
        task="A step is one forward in training mode",
    )
    want = _right(start, data, steps, lr)
    trained = [name for name in want if "lora_" in name or name.startswith("classifier")]
    found = {name: p.detach().clone() for name, p in model.named_parameters()}
    chosen = {name for name, p in model.named_parameters() if p.requires_grad}
    mistakes = (
        {
            s: _stacked(_right(start, data, steps + f.get("more", 0), lr, **_without(f, "more")), want)
            for s, f in MISTAKES.items()
        }
        if steps
        else {}
    )
    off = [n for n in want if n in found and not torch.allclose(found[n], want[n], rtol=1e-6, atol=1e-6)]
    first = f" (the first that is wrong is `{off[0]}`)" if off else ""
    report.close(
        f"all parameters after the last step, one after another{first}",
        _stacked(found, want),
        _stacked(want, want),
        tolerance=1e-6,
        mistakes=mistakes,
        given=(),
        task=STEP if chosen == set(trained) else TRAINED,
    )
    frozen = [n for n in before if not n.startswith("classifier") and n in found]
    report.true(
        all(torch.equal(found[n], before[n]) for n in frozen),
        "what is frozen is as it was",
        "a frozen parameter has other values",
        task=TRAINED,
    )
    _returned(report, model, got, trained, dict(start.named_parameters()) if steps else {})


def _without(settings: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != name}


def _returned(
    report: Report, model: BertClassifier, got: Any, trained: list[str], begun: dict[str, Tensor]
) -> None:
    parameters = dict(model.named_parameters())
    if not isinstance(got, dict) or not all(isinstance(t, Tensor) for t in got.values()):
        report.fail(
            f"the result, a {type(got).__name__}, is not a dict of tensors",
            task="Return a dict from the parameters' names in `model` to tensors with their values at the end",
        )
    missing = sorted(set(trained) - set(got))
    cut = sorted({n.partition(".")[2] for n in missing} & set(got))
    report.true(
        not missing,
        "the dict has all that was trained",
        f"the dict has no {', '.join(missing[:2])}" + (" …" if len(missing) > 2 else ""),
        got="without prefix" if len(cut) == len(missing) > 0 else missing,
        mistakes={
            "when the classifier is not saved": sorted(n for n in trained if n.startswith("classifier")),
            "when A is saved, and not B": sorted(n for n in trained if "lora_B" in n),
            "when names are those in a part of `model`, such as `model.bert`": "without prefix",
        },
        given=(),
        task="The dict holds all trained parameters.",
    )
    report.true(
        all(torch.equal(got[n].detach(), parameters[n].detach()) for n in trained),
        "with the values at the end",
        "a tensor of the dict has other values than the model",
        got="start" if begun and all(torch.equal(got[n].detach(), begun[n]) for n in trained) else None,
        mistakes={"when the values are copied before the first step": "start"},
        given=(),
        task="Return a dict from the parameters' names in `model` to tensors with their values at the end",
    )
    with torch.no_grad():
        for n in trained:
            parameters[n].add_(1.0)
    shared = [n for n in trained if torch.equal(got[n].detach(), parameters[n].detach())]
    with torch.no_grad():
        for n in trained:
            parameters[n].sub_(1.0)
    report.true(
        not shared,
        "the tensors are copies",
        f"{shared[0] if shared else ''} changes when the model is trained further",
        got="shared" if shared else None,
        mistakes={"when the dict holds the model's own tensors": "shared"},
        given=(),
        task="The tensors are copies, so they stay the same when `model` is trained further.",
    )
    wanted = sum(parameters[n].nbytes for n in trained)
    report.at_most(
        "bytes of the dict",
        sum(t.nbytes for t in got.values()),
        wanted,
        mistakes={
            "when the whole state of the model is returned": sum(
                t.nbytes for t in model.state_dict().values()
            )
        },
        task="The dict has nothing but what was trained: its bytes are those of the trained numbers.",
    )


def _stacked(state: dict[str, Tensor], like: dict[str, Tensor]) -> Tensor:
    """What is compared: the numbers that are trained, or may be trained by mistake, in one row."""
    return torch.cat([state[name].flatten() for name in like if name in state])
