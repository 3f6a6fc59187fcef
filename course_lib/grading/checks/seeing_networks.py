"""Checks of chapter 01 on looking: shapes by hooks, and without leaving a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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


def _hooks(model: nn.Module) -> list[int]:
    """Identities of all hooks that a forward pass runs."""
    found = [(module._forward_hooks, module._forward_pre_hooks) for module in model.modules()]
    return [id(hook) for both in found for hooks in both for hook in hooks.values()]


Calls = list[tuple[str, tuple[int, ...]]]


def _noted(model: nn.Module, inputs: Any, *, leaves: bool = True, of_input: bool = False) -> Calls:
    """The calls with something changed: every module instead of the leaves, or the shape of the input."""
    calls, handles = [], []
    for name, module in model.named_modules():
        if not leaves or not list(module.children()):

            def hook(module: nn.Module, args: tuple, output: Tensor, name: str = name) -> None:
                calls.append((name, tuple((args[0] if of_input else output).shape)))

            handles.append(module.register_forward_hook(hook))
    model(inputs)
    for handle in handles:
        handle.remove()
    return calls


def _by_construction(model: nn.Module, inputs: Any) -> Calls:
    shapes = dict(_leaf_calls(model, inputs))
    return [(name, shapes[name]) for name, _ in model.named_modules() if name in shapes]


LEAF_SHAPES: dict[str, Callable[[nn.Module, Any], Calls]] = {
    "when a module that runs twice is in the list once": lambda m, x: list(dict(_leaf_calls(m, x)).items()),
    "when every hook uses the last name of the loop, because the name is not bound when the hook is made": (
        lambda m, x: [(_last_name(m), shape) for _, shape in _leaf_calls(m, x)]
    ),
    "when the entries stand in the order of construction": _by_construction,
    "when modules with children are in the list too": lambda m, x: _noted(m, x, leaves=False),
    "when all modules but the model itself are in the list": lambda m, x: [
        (name, shape) for name, shape in _noted(m, x, leaves=False) if name
    ],
    "when the shape is that of the input": lambda m, x: _noted(m, x, of_input=True),
    "when the model runs twice with the hooks on it": lambda m, x: 2 * _leaf_calls(m, x),
    "when the calls stand in reverse order": lambda m, x: _leaf_calls(m, x)[::-1],
}


@check
def check_01_1(report: Report, leaf_shapes: Callable) -> None:
    torch.manual_seed(0)
    cases = {
        "a block whose relu runs twice": (BasicBlock(4, 8, stride=2), torch.randn(2, 4, 6, 6)),
        "ResNet-18, 8 channels wide": (ResNet18(10, 1, small_images=True, width=8), torch.randn(3, 1, 8, 8)),
        "GPT with two layers": (GPT(GPTConfig.tiny(num_layers=2)), TOKENS),
        "one linear layer": (nn.Linear(3, 5), torch.randn(2, 3)),
        "a model that runs its modules in another order": (Counted(), torch.randn(3, 6)),
    }
    for name, (model, inputs) in cases.items():
        with report.case(name):
            hooks = _hooks(model)
            got = leaf_shapes(model, inputs)
            got = [(n, tuple(shape)) for n, shape in got] if isinstance(got, list) else got
            left = _hooks(model)
            want = _leaf_calls(model, inputs)
            task = "one entry for every call of a module without children, in the order of the calls"
            fact = f"{len(want)} calls, in order" if len(want) > 1 else "1 call"
            report.equal(fact, got, want, mistakes=LEAF_SHAPES, given=(model, inputs), task=task)
            _hooks_kept(report, hooks, left)
    with report.case("a model that has a hook already"):
        model, seen = Counted(), []
        model.wide.register_forward_hook(lambda *_: seen.append(1))
        hooks = _hooks(model)
        leaf_shapes(model, torch.randn(3, 6))
        _hooks_kept(report, hooks, _hooks(model))
        report.at_most("forward passes", model.passes, 1, task="one forward pass")
    with report.case("a model that raises half-way"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
        try:
            leaf_shapes(model, torch.zeros(1, 4))
        except RuntimeError:
            _hooks_kept(report, [], _hooks(model))
        else:
            report.fail("its error does not reach the caller", task="its error reaches the caller")


def _hooks_kept(report: Report, before: list[int], after: list[int]) -> None:
    more, fewer = len([h for h in after if h not in before]), len([h for h in before if h not in after])
    problem = f"{more} of its own are left, and {fewer} of the caller's are gone"
    task = "Afterwards the model has the hooks that it had before, and no others"
    report.true(not more and not fewer, "the hooks are as before", f"hooks: {problem}", task=task)


def _last_name(model: nn.Module) -> str:
    return [name for name, _ in model.named_modules()][-1]


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
    yield "hooks", _hooks(model)


TASKS = {
    "training modes": "the `training` flag of every module",
    "hooks": "and the model's hooks",
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
            report.fail(f"{what}: not as before", task=TASKS.get(what, "Afterwards everything is as it was"))
    report.ok("modes, buffers, gradients, parameters, hooks, random state as before")


def _of_training(model: nn.Module, inputs: Any) -> Any:
    return tuple(inputs.shape)


@check
def check_01_4(report: Report, output_shape: Callable) -> None:
    torch.manual_seed(0)
    resnet, counted, fragile = ResNet18(10, 1, small_images=True, width=8), Counted(), Fragile()
    resnet.bn1.eval()  # one norm is in evaluation mode, as in fine-tuning
    resnet.conv1.requires_grad_(False)
    counted.dropout.eval()
    counted.wide.register_forward_hook(lambda *_: None)
    counted(torch.randn(4, 6)).sum().backward()
    cases = {
        "ResNet-18 with one frozen norm": (resnet, torch.randn(4, 1, 8, 8), (4, 10)),
        "a model with gradients and a hook, which draws random numbers": (counted, torch.randn(3, 6), (3, 6)),
        "one row, which BatchNorm refuses to train on": (counted, torch.randn(1, 6), (1, 6)),
        "one linear layer in bfloat16": (nn.Linear(3, 5).bfloat16(), torch.ones(2, 3).bfloat16(), (2, 5)),
    }
    for name, (model, inputs, want) in cases.items():
        with report.case(name):
            with _unchanged(report, model):
                got = output_shape(model, inputs)
            mistakes = {"when the shape is that of the input": _of_training}
            task = "Return the shape of what `model(*inputs)` returns in evaluation mode"
            report.equal("output shape", got, want, mistakes=mistakes, given=(model, inputs), task=task)
    with report.case("a model that raises half-way"):
        rows = torch.randn(4, 6)
        with _unchanged(report, fragile):
            try:
                output_shape(fragile, rows)
            except RuntimeError:
                pass
            else:
                report.fail("its error does not reach the caller", task="its error reaches the caller")
    with report.case("BERT, 11,000 words"):
        bert = Bert(BertConfig.tiny(vocab_size=11000))
        with _unchanged(report, bert), ParameterCopies(bert) as copies:
            got = output_shape(bert, TOKENS)
        report.equal("output shape", got, (2, 8, 64))
        task = "no parameter is copied"
        report.at_most("bytes of parameters copied", copies.bytes, 0, task=task)
