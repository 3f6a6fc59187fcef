"""The check of chapter 08's checkpoint: gradients equal autograd's bit for bit, and bytes and runs are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from course_lib.grading.report import Report, check


class Alive(TorchDispatchMode):
    """Bytes of the storages made while it is on, and still alive: now, and at most."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = WeakIdKeyDictionary()
        self.made = WeakIdKeyDictionary()
        self.most = 0
        for tensor in known:
            self.known[tensor.untyped_storage()] = True

    @property
    def now(self) -> int:
        return sum(storage.nbytes() for storage in self.made)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage() not in self.known:
                self.made[tensor.untyped_storage()] = True
        self.most = max(self.most, self.now)
        return result


RANDOM_STATE = 6000  # bytes of the CPU's random state, and a little
OTHER_MASK = (
    "this is the gradient of another dropout mask: note the random state before the first forward, "
    "and set it before the second."
)
STREAM = (
    "the second forward must not move the random stream: note where it stands, and set it back afterwards."
)
LOST = "a tensor that you detached has its own .grad; return it, one for every tensor argument."


class _Case(NamedTuple):
    name: str
    function: Callable[..., Tensor]
    arguments: list[Tensor]
    weights: list[Tensor]


def _cases() -> list[_Case]:
    torch.manual_seed(8)
    first, last = nn.Linear(24, 96), nn.Linear(96, 24)
    plain = nn.Sequential(first, nn.Tanh(), last, nn.Tanh())
    mlp = nn.Sequential(first, nn.Tanh(), nn.Dropout(0.5), last, nn.Dropout(0.5))
    a, b, c = torch.randn(3, 32, 24).unbind()
    index = torch.arange(31, -1, -1)
    cases = [
        ("an MLP", plain, [a]),
        ("an MLP with dropout", mlp, [a]),
        ("dropout, two tensors", lambda x, y: mlp(x) * y, [a, b]),
        ("dropout, rows by an index", lambda x, rows, y: mlp((x[rows] * y).tanh()), [b, index, c]),
    ]
    weights = list(mlp.parameters())
    return [
        _Case(name, f, [t.clone().requires_grad_(t.is_floating_point()) for t in arguments], weights)
        for name, f, arguments in cases
    ]


class _Outcome(NamedTuple):
    result: Tensor
    inputs: list[Tensor | None]
    weights: list[Tensor | None]
    stream: list[Tensor]  # random numbers drawn after forward and after backward
    kept: int
    calls: int


def _run(case: _Case, run: Callable[..., Tensor]) -> _Outcome:
    """Inside a larger graph, as one layer of many: the arguments are results, and are used elsewhere too."""
    calls = 0

    def counted(*args: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return case.function(*args)

    arguments = [t.sin() if t.requires_grad else t for t in case.arguments]
    torch.manual_seed(1)
    with Alive(*arguments, *case.weights) as alive:
        y = run(counted, *arguments)
        kept = alive.now - y.untyped_storage().nbytes()
    result, stream = y.detach().clone(), [torch.rand(1)]
    trained = [t for t in case.arguments if t.requires_grad]
    for tensor in (*trained, *case.weights):
        tensor.grad = None
    loss = torch.dropout(y, 0.5, True).square().sum() + sum(t.square().sum() for t in arguments)
    loss.backward()
    stream.append(torch.rand(1))
    return _Outcome(result, [t.grad for t in trained], [w.grad for w in case.weights], stream, kept, calls)


@contextmanager
def _explained(report: Report) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if "incorrect number of gradients" in text:
            report.fail(
                "backward returned the wrong number of gradients",
                "one for each argument of forward but ctx: also for `function`, whose gradient is None.",
            )
        if "backward through the graph a second time" in text:
            report.fail(
                "backward went through the graph of the caller",
                "detach what was saved before you run forward on it: your own graph ends there.",
            )
        raise


@check
def check_08_2(report: Report, checkpoint: type[torch.autograd.Function]) -> None:
    for case in _cases():
        report.case(case.name)
        want = _run(case, lambda f, *args: f(*args))
        with _explained(report):
            got = _run(case, checkpoint.apply)
        report.equal("the result", got.result, want.result)
        if any(gradient is None for gradient in got.weights):
            report.fail(
                "a weight of `function` has no gradient",
                "torch.autograd.backward(y, gradient) reaches the weights as well; grad(y, inputs) does not.",
            )
        # The arguments are used elsewhere too, so a lost gradient is a difference, not a None.
        same = all(a is not None and a.equal(b) for a, b in zip(got.inputs, want.inputs, strict=True))
        if not same:
            leaves = [t for t in case.arguments if t.requires_grad]
            lost = [torch.autograd.grad(t.sin().square().sum(), t)[0] for t in leaves]
            likely = OTHER_MASK if "dropout" in case.name else None
            if any(torch.allclose(a, b) for a, b in zip(got.inputs, lost, strict=True)):
                likely = LOST
            report.fail("the gradients of the arguments differ from those without a checkpoint", likely)
        report.ok("gradients of the arguments, bit for bit")
        report.equal(
            "gradients of the weights, bit for bit",
            got.weights,
            want.weights,
            likely="each backward through the second forward adds to the weights' gradients: go once.",
        )
        report.true(
            all(map(torch.equal, got.stream, want.stream)),
            "the random stream goes on as if nothing had happened",
            "the random stream stands elsewhere afterwards",
            STREAM,
        )
        report.at_most(
            "bytes kept, besides arguments and result",
            got.kept,
            RANDOM_STATE,
            likely="the first forward keeps its graph, or copies: save the arguments themselves, and nothing else.",
        )
        report.at_most(
            "runs of the function",
            got.calls,
            2,
            likely="one more forward gives all gradients together.",
        )
