"""Checks of chapter 01 on looking: shapes by hooks, and without leaving a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from course_lib.grading.compare import same
from course_lib.grading.parameter_copies import ParameterCopies
from course_lib.grading.report import Report, check
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.resnet import BasicBlock, ResNet18

TOKENS = torch.ones(2, 8, dtype=torch.long)


class Counted(nn.Module):
    """A linear layer under two names, a norm, a dropout, random numbers; counts its own forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.5)
        self.pair = nn.Sequential(self.wide, nn.Tanh())
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.dropout(self.norm(self.pair(self.wide(x)))) + torch.rand(6)


def _leaf_calls(model: nn.Module, *inputs: Tensor) -> list[tuple[str, tuple[int, ...]]]:
    """The oracle of 01.1: one hook for all modules there are, of which it keeps the model's leaves."""
    names = {module: name for name, module in model.named_modules()}
    calls: list[tuple[str, tuple[int, ...]]] = []

    def note(module: nn.Module, args: tuple, output: Tensor) -> None:
        if module in names and not list(module.children()):
            calls.append((names[module], tuple(output.shape)))

    handle = nn.modules.module.register_module_forward_hook(note)
    try:
        model(*inputs)
    finally:
        handle.remove()
    return calls


def _hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@check
def check_01_1(report: Report, leaf_shapes: Callable) -> None:
    torch.manual_seed(0)
    cases = {
        "a block whose relu runs twice": (BasicBlock(4, 8, stride=2), torch.randn(2, 4, 6, 6)),
        "ResNet-18, 8 channels wide": (ResNet18(10, 1, small_images=True, width=8), torch.randn(3, 1, 8, 8)),
        "GPT with two layers": (GPT(GPTConfig.tiny(num_layers=2)), TOKENS),
    }
    for name, (model, inputs) in cases.items():
        report.case(name)
        want, got = _leaf_calls(model, inputs), leaf_shapes(model, inputs)
        modules = [(n, tuple(s)) for n, s in got] if isinstance(got, list) else got
        once = list(dict(want).items())
        report.equal(
            f"{len(want)} calls, in order",
            modules,
            want,
            mistakes={
                "a module that runs twice is in the list twice: a dict keeps one of them": once,
                "the hook sees the loop's last name: bind it when it is made (`name=name`)": [
                    (_last_leaf(model), shape) for _, shape in want
                ],
                "the same in the order of construction: let the hook append, in the order of calls": [
                    (n, dict(want)[n]) for n, _ in model.named_modules() if n in dict(want)
                ],
            },
            likely=_guess_at_calls(modules, want, model),
        )
        report.at_most(
            "hooks left on the model",
            _hooks(model),
            0,
            likely="keep what register_forward_hook returns, and .remove() it",
        )
    report.case("a model that raises half-way")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    try:
        leaf_shapes(model, torch.zeros(1, 4))
    except RuntimeError:
        report.at_most(
            "hooks left on the model",
            _hooks(model),
            0,
            likely="remove the hooks in a `finally`: the forward may raise",
        )
    else:
        report.fail("its error is not passed on", "do not swallow what the forward raises")
    report.case("a model that counts")
    model = Counted()
    leaf_shapes(model, torch.randn(3, 6))
    report.at_most("forward passes", model.passes, 1, likely="hang all hooks first, then run the model once")


def _last_leaf(model: nn.Module) -> str:
    return [name for name, module in model.named_modules() if not list(module.children())][-1]


def _guess_at_calls(got: object, want: list, model: nn.Module) -> str | None:
    if not isinstance(got, list) or not got:
        return "return a list of (name, shape)" if got is not None else None
    names = {name for name, _ in got}
    if names & {name for name, module in model.named_modules() if list(module.children())}:
        return "only leaves: a module with children is left out"
    return (
        "the shape of the output, not of the input?" if [n for n, _ in got] == [n for n, _ in want] else None
    )


class Fragile(Counted):
    """Raises for inputs of more than three rows, in the middle of its forward."""

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        if len(x) > 3:
            raise RuntimeError("too many rows")
        return result


def _state(model: nn.Module) -> Iterator[tuple[str, object]]:
    yield "training modes", [module.training for module in model.modules()]
    yield "buffers", [(id(b), b.clone()) for b in model.buffers()]
    yield "the random state", torch.get_rng_state()
    yield "gradients", {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    yield "requires_grad", [p.requires_grad for p in model.parameters()]
    yield "parameters", [(id(p), p.detach().clone()) for p in model.parameters()]
    yield "gradient mode", torch.is_grad_enabled()


LIKELY = {
    "training modes": "remember every module's own `training`: model.train() sets all of them alike",
    "buffers": "BatchNorm in training mode updates its running statistics: run in evaluation mode",
    "the random state": "the forward may draw random numbers: torch.random.fork_rng()",
    "gradient mode": "use `with torch.no_grad():`, not torch.set_grad_enabled(False)",
}


@contextmanager
def _unchanged(report: Report, model: nn.Module) -> Iterator[None]:
    before = dict(_state(model))
    try:
        yield
        after = dict(_state(model))
    finally:
        torch.set_grad_enabled(before["gradient mode"])  # whatever an answer does, the next check needs it
    for what, now in after.items():
        if not same(now, before[what]):
            report.fail(f"{what}: not as before", LIKELY.get(what))
    report.ok("modes, buffers, gradients, parameters, random state as before")


@check
def check_01_4(report: Report, output_shape: Callable) -> None:
    torch.manual_seed(0)
    resnet, counted, fragile = ResNet18(10, 1, small_images=True, width=8), Counted(), Fragile()
    resnet.bn1.eval()  # one frozen norm, as in fine-tuning
    counted.dropout.eval()
    counted(torch.randn(4, 6)).sum().backward()
    cases = {
        "ResNet-18 with one frozen norm": (resnet, torch.randn(4, 1, 8, 8), (4, 10)),
        "a model with gradients, which draws random numbers": (counted, torch.randn(3, 6), (3, 6)),
        "one row, which BatchNorm refuses to train on": (counted, torch.randn(1, 6), (1, 6)),
    }
    for name, (model, inputs, want) in cases.items():
        report.case(name)
        with _unchanged(report, model):
            got = output_shape(model, inputs)
        report.equal("output shape", tuple(got) if got is not None else None, want)
    report.case("a model that raises half-way")
    rows = torch.randn(4, 6)
    with _unchanged(report, fragile):
        try:
            output_shape(fragile, rows)
        except RuntimeError:
            pass
        else:
            report.fail("its error is not passed on", "do not swallow what the forward raises")
    report.case("BERT, 11,000 words")
    bert = Bert(BertConfig.tiny(vocab_size=11000))
    with ParameterCopies(bert) as copies:
        got = output_shape(bert, TOKENS)
    report.equal("output shape", tuple(got), (2, 8, 64))
    report.at_most(
        "bytes of parameters copied",
        copies.bytes,
        0,
        likely="a copy of the model takes its memory twice: put back what you changed instead",
    )
