"""The check of chapter 01 on shapes by hooks, and what comes out of likely mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.report import Report, check
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


def hooks_of(model: nn.Module) -> list[int]:
    """Identities of all hooks that a forward pass runs."""
    found = [(module._forward_hooks, module._forward_pre_hooks) for module in model.modules()]
    return [id(hook) for both in found for hooks in both for hook in hooks.values()]


Calls = list[tuple[str, tuple[int, ...]]]
Hooks = tuple[list[int], list[int]]  # of the model before the answer ran, and after


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


def _by_module(model: nn.Module, inputs: Any) -> Calls:
    calls = _leaf_calls(model, inputs)
    return [call for name, _ in model.named_modules() for call in calls if call[0] == name]


def _under_all_names(model: nn.Module, inputs: Any) -> Calls:
    names: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    of = {each[0]: each for each in names.values()}
    return [(name, shape) for first, shape in _leaf_calls(model, inputs) for name in of[first]]


def _under_the_last_name(model: nn.Module, inputs: Any) -> Calls:
    last = {module: name for name, module in model.named_modules(remove_duplicate=False)}
    return [(last[model.get_submodule(name)], shape) for name, shape in _leaf_calls(model, inputs)]


def _by_construction(model: nn.Module, inputs: Any) -> Calls:
    shapes = dict(_leaf_calls(model, inputs))
    return [(name, shapes[name]) for name, _ in model.named_modules() if name in shapes]


LEAF_SHAPES: dict[str, Callable[[nn.Module, Any], Calls]] = {
    "when a module that runs twice is in the list once": lambda m, x: list(dict(_leaf_calls(m, x)).items()),
    "when every hook uses the last name of the loop, because the name is not bound when the hook is made": (
        lambda m, x: [(_last_name(m), shape) for _, shape in _leaf_calls(m, x)]
    ),
    "when the entries stand in the order of construction": _by_construction,
    "when the calls of each module stand together, in the order of construction": _by_module,
    "when a module that has two names is in the list under both": _under_all_names,
    "when a module that has two names is in the list under the last one": _under_the_last_name,
    "when a model that has no children itself is left out": lambda m, x: [
        c for c in _leaf_calls(m, x) if c[0]
    ],
    "when the name is the name of the module's class": lambda m, x: [
        (type(m.get_submodule(name)).__name__, shape) for name, shape in _leaf_calls(m, x)
    ],
    "when the name is only the last part of the dotted name": lambda m, x: [
        (name.rpartition(".")[2], shape) for name, shape in _leaf_calls(m, x)
    ],
    "when the shape lacks the batch": lambda m, x: [(name, shape[1:]) for name, shape in _leaf_calls(m, x)],
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
        "GPT with two layers": (GPT(GPTConfig.tiny(num_layers=2)), torch.ones(2, 8, dtype=torch.long)),
        "one linear layer": (nn.Linear(3, 5), torch.randn(2, 3)),
        "a model that runs its modules in another order": (Counted(), torch.randn(3, 6)),
    }
    removes = True  # its own hooks, where nothing raises
    for name, (model, inputs) in cases.items():
        with report.case(name):
            before = hooks_of(model)
            got = leaf_shapes(model, inputs)
            got = [(n, tuple(shape)) for n, shape in got] if isinstance(got, list) else got
            hooks = before, hooks_of(model)
            removes = removes and _left_and_gone(hooks)[0] == 0
            want = _leaf_calls(model, inputs)
            task = "one entry for every call of a module without children, in the order of the calls"
            fact = f"{len(want)} calls, in order" if len(want) > 1 else "1 call"
            report.equal(fact, got, want, mistakes=LEAF_SHAPES, given=(model, inputs), task=task)
            _hooks_kept(report, hooks, {"when the hooks are not removed": len(set(want))})
    with report.case("a layer with two inputs"):
        got = leaf_shapes(nn.Bilinear(3, 4, 5), torch.randn(2, 3), torch.randn(2, 4))
        report.equal(
            "1 call", got, [("", (2, 5))], task="one entry for every call of a module without children"
        )
    with report.case("a model that has a hook already"):
        model, seen = Counted(), []
        model.wide.register_forward_hook(lambda *_: seen.append(1))
        before = hooks_of(model)
        leaf_shapes(model, torch.randn(3, 6))
        cleared = "when all hooks of a module are cleared, and not only its own"
        _hooks_kept(report, (before, hooks_of(model)), {cleared: 0})
        report.at_most(
            "forward passes",
            model.passes,
            1,
            mistakes={"when the model runs once for each leaf": 4},
            task="one forward pass",
        )
    with report.case("a model that raises half-way"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
        try:
            leaf_shapes(model, torch.zeros(1, 4))
        except RuntimeError:
            why = "when the forward pass raises before the line that removes the hooks, and no `finally` does it"
            _hooks_kept(
                report, ([], hooks_of(model)), {why if removes else "when the hooks are not removed": 2}
            )
        else:
            why = "an `except` or a `return` in the `finally` has taken it"
            report.fail(f"its error does not reach the caller\n({why})", task="its error reaches the caller")


def _left_and_gone(hooks: Hooks) -> tuple[int, int]:
    before, after = hooks
    return len([h for h in after if h not in before]), len([h for h in before if h not in after])


def _hooks_kept(report: Report, hooks: Hooks, mistakes: dict[str, int]) -> None:
    """``mistakes``: how many hooks of its own each leaves; one that leaves none has removed the caller's."""
    left, gone = _left_and_gone(hooks)
    report.true(
        not left and not gone,
        "the hooks are as before",
        f"hooks: {left} of its own are left, and {gone} of the caller's are gone",
        got=(left, gone),
        mistakes={text: (number, 0 if number else len(hooks[0])) for text, number in mistakes.items()},
        task="Afterwards the model has the hooks that it had before, and no others",
    )


def _last_name(model: nn.Module) -> str:
    return [name for name, _ in model.named_modules()][-1]
