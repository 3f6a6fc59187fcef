"""The check of chapter 01 on running a model without a trace, and what comes out of likely mistakes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.checks.seeing_networks import Counted, hooks_of
from course_lib.grading.compare import same
from course_lib.grading.parameter_copies import ParameterCopies
from course_lib.grading.report import Report, check
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.resnet import ResNet18


class Fragile(Counted):
    """Raises for inputs of more than three rows, in the middle of its forward."""

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        if len(x) > 3:
            raise RuntimeError("too many rows")
        return result


class Observed(nn.Module):
    """Keeps in buffers what it saw, in evaluation mode too, as the observers of quantisation do.

    It writes into two of them, and puts a new tensor in the place of the third.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 5)
        self.dropout = nn.Dropout()
        self.register_buffer("largest", torch.zeros(3))
        self.register_buffer("calls", torch.tensor(0), persistent=False)
        self.register_buffer("rows", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.largest.copy_(torch.maximum(self.largest, x.detach().abs().amax(0)))
        self.calls.add_(1)
        self.rows = self.rows + len(x)
        return self.dropout(self.dense(x))


def _state(model: nn.Module) -> Iterator[tuple[str, Any]]:
    yield "gradient mode", torch.is_grad_enabled()
    yield "training modes", {name: module.training for name, module in model.named_modules()}
    yield "buffers", {name: (id(b), b.clone()) for name, b in model.named_buffers()}
    yield "the random state", torch.get_rng_state()
    yield "gradients", {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    yield "requires_grad", {name: p.requires_grad for name, p in model.named_parameters()}
    yield "parameters", {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
    yield "hooks", hooks_of(model)


TASKS = {
    "training modes": "the `training` flag of every module",
    "gradient mode": "whether gradients are recorded (`torch.is_grad_enabled()`)",
    "the random state": "the state of the CPU's random numbers",
    "hooks": "and the model's hooks",
    "buffers": "A buffer that the forward pass changes gets its values back, in the same tensor",
}
EVERYTHING = "Afterwards everything is as it was"

NOT_IN_FINALLY = (
    "when the forward pass raises before the lines that put everything back, and no `finally` does it"
)


def _mistakes(
    model: nn.Module, inputs: Tensor, before: dict[str, Any], sound: bool
) -> dict[str, dict[str, Any]]:
    """What each mistake leaves behind; ``sound``: the answer left no trace where the forward pass did not raise."""
    modes, frozen = before["training modes"], before["requires_grad"]
    as_found, evaluated = _after_a_run(model, inputs), _after_a_run(model, inputs, evaluate=True)
    values = {name: value for name, (_, value) in before["buffers"].items()}
    run, saved = evaluated["buffers"], model.state_dict()
    buffers = {
        "when a buffer that the forward pass changes does not get its values back": run,
        "when other tensors take the place of the buffers": {n: (False, v) for n, v in values.items()},
        "when values are put back, but not the buffer itself where the forward pass put another in its place": {
            name: (run[name][0], value) for name, value in values.items()
        },
        "when a buffer is the same tensor as before, with the values that the forward pass has written into it": {
            name: (True, now if kept else values[name]) for name, (kept, now) in run.items()
        },
        "when only the buffers in `state_dict()` get their values back, and those with `persistent=False` do not": {
            name: (run[name][0], value if name in saved else run[name][1]) for name, value in values.items()
        },
    }
    if not same(as_found["buffers"], run):
        buffers["when the model runs in the mode that it is found in"] = as_found["buffers"]
    return {
        "gradient mode": {
            NOT_IN_FINALLY if sound else "when gradients are switched off and not on again": False,
            "when gradients are switched on at the end, whatever was before": True,
        },
        "training modes": {
            NOT_IN_FINALLY if sound else "when the model stays in evaluation mode": dict.fromkeys(
                modes, False
            ),
            "when `train()` is called at the end, whatever the modes were": dict.fromkeys(modes, True),
            "when every module gets the mode that the model itself had": dict.fromkeys(modes, model.training),
        },
        "buffers": buffers,
        "the random state": {
            "when the random state is not put back after the forward pass": evaluated["the random state"],
            "when the seed is set again, which starts the random numbers from their beginning": _seeded_again(),
        },
        "gradients": {"when the gradients are cleared": {}},
        "requires_grad": {
            "when all parameters stay frozen": dict.fromkeys(frozen, False),
            "when `requires_grad` is switched on for every parameter, also for a frozen one": (
                dict.fromkeys(frozen, True)
            ),
        },
    }


def _seeded_again() -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.initial_seed())
        return torch.get_rng_state()


Held = dict[str, tuple[int, Tensor]]  # each buffer's identity and values


def _kept(now: Held, before: Held) -> dict[str, tuple[bool, Tensor]]:
    """Of each buffer, whether it is the tensor that it was before, and its values."""
    return {name: (name in before and i == before[name][0], value) for name, (i, value) in now.items()}


def _after_a_run(model: nn.Module, inputs: Tensor, *, evaluate: bool = False) -> dict[str, Any]:
    """The state of a copy that has run once, in the modes in which it is found or in evaluation mode."""
    copied = copy.deepcopy(model)
    if evaluate:
        copied.eval()
    before, alive = (
        dict(_state(copied))["buffers"],
        list(copied.buffers()),
    )  # an `id` lasts as long as its tensor
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        with suppress(RuntimeError, ValueError):  # where it raises, it has left traces as well
            copied(inputs)
        after = dict(_state(copied))
    del alive
    return after | {"buffers": _kept(after["buffers"], before)}


@contextmanager
def _unchanged(report: Report, model: nn.Module, inputs: Tensor, sound: bool = False) -> Iterator[None]:
    before, alive = (
        dict(_state(model)),
        [*model.buffers(), *model.parameters()],
    )  # an `id` lasts as long as its tensor
    mistakes = _mistakes(model, inputs, before, sound)
    try:
        yield
        after = dict(_state(model))
    finally:
        torch.set_grad_enabled(before["gradient mode"])  # whatever an answer does, the next check needs it
        torch.set_rng_state(before["the random state"])
        del alive
    for what, now in after.items():
        got = _kept(now, before[what]) if what == "buffers" else now
        if not same(now, before[what]):
            problem = f"{what}: not as before{_where(now, before[what])}"
            task = TASKS.get(what, EVERYTHING)
            report.true(False, what, problem, got=got, mistakes=mistakes.get(what), task=task)
    report.ok("modes, buffers, gradients, parameters, hooks, random state as before")


def _where(now: Any, before: Any) -> str:
    """On a line of its own, how many differ and which is the first."""
    if isinstance(now, bool):
        return f"\n(was {before}, is {now})"
    if not isinstance(now, dict) or now.keys() != before.keys():
        return ""
    changed = [name for name in now if not same(now[name], before[name])]
    first = changed[0]
    values = f", was {before[first]}, is {now[first]}" if isinstance(now[first], bool) else ""
    return f"\n({len(changed)} of {len(now)} differ; the first is {first or 'the model itself'}{values})"


@check
def check_01_4(report: Report, output_shape: Callable) -> None:
    torch.manual_seed(0)
    resnet, counted, fragile, observed = (
        ResNet18(10, 1, small_images=True, width=8),
        Counted(),
        Fragile(),
        Observed().bfloat16().eval(),
    )
    resnet.bn1.eval()  # one norm is in evaluation mode, as in fine-tuning
    resnet.conv1.requires_grad_(False)
    counted.dropout.eval()
    counted.wide.register_forward_hook(lambda *_: None)
    counted(torch.randn(4, 6)).sum().backward()
    observed.dropout.train()  # as for uncertainty by dropout
    rows = torch.randn(3, 6)
    cases = {
        "ResNet-18 with one frozen norm": (resnet, torch.randn(4, 1, 8, 8), (4, 10)),
        "a model with gradients and a hook, which draws random numbers": (counted, rows, (3, 6)),
        "one row, which BatchNorm refuses to train on": (counted, rows[:1], (1, 6)),
        "a model in bfloat16 that counts its calls in a buffer": (
            observed,
            torch.ones(2, 3).bfloat16(),
            (2, 5),
        ),
        "a call where gradients are not recorded": (counted, rows, (3, 6)),
    }
    mistakes = {"when the shape is that of the input": _of_input}
    for name, (model, inputs, want) in cases.items():
        with report.case(name), torch.set_grad_enabled("not recorded" not in name):
            with _unchanged(report, model, inputs):
                got = output_shape(model, inputs)
            task = "Return the shape of what `model(*inputs)` returns in evaluation mode"
            report.equal("output shape", got, want, mistakes=mistakes, given=(model, inputs), task=task)
    with report.case("a layer with two inputs"), torch.enable_grad():  # what an answer switches off ends here
        got = output_shape(nn.Bilinear(3, 4, 5), torch.randn(2, 3), torch.randn(2, 4))
        report.equal("output shape", got, (2, 5), task="Return the shape of what `model(*inputs)` returns")
    with report.case("a model that raises half-way"):
        rows, sound = torch.randn(4, 6), not report.failures
        with _unchanged(report, fragile, rows, sound):
            try:
                output_shape(fragile, rows)
            except RuntimeError:
                pass
            else:
                why = "an `except` or a `return` in the `finally` has taken it"
                report.fail(
                    f"its error does not reach the caller\n({why})", task="its error reaches the caller"
                )
    with report.case("BERT, 11,000 words"):
        bert, tokens = Bert(BertConfig.tiny(vocab_size=11000)), torch.ones(2, 8, dtype=torch.long)
        with _unchanged(report, bert, tokens), ParameterCopies(bert) as copies:
            got = output_shape(bert, tokens)
        report.equal("output shape", got, (2, 8, 64))
        task = "no parameter is copied"
        report.at_most("bytes of parameters copied", copies.bytes, 0, task=task)


def _of_input(model: nn.Module, inputs: Tensor) -> tuple[int, ...]:
    return tuple(inputs.shape)
