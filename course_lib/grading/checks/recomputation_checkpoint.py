"""The check of chapter 08's checkpoint: gradients equal autograd's bit for bit, and bytes and runs are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class _Case(NamedTuple):
    name: str
    function: Callable[..., Tensor]
    arguments: list[Tensor]
    weights: list[Tensor]


def _cases() -> list[_Case]:
    first, last, frozen = nn.Linear(24, 96), nn.Linear(96, 24), nn.Linear(24, 24).requires_grad_(False)
    plain = nn.Sequential(first, nn.Tanh(), last, nn.Tanh())
    mlp = nn.Sequential(first, nn.Tanh(), nn.Dropout(0.5), last, nn.Dropout(0.5))
    a, b, c = torch.randn(3, 32, 24).unbind()  # views of one tensor
    index = torch.arange(31, -1, -1)
    cases = [
        ("an MLP", plain, [a]),
        ("an MLP with dropout", mlp, [a]),
        ("dropout, two tensors", lambda x, y: mlp(x) * y, [a, b]),
        ("dropout, rows by an index", lambda x, rows, y: mlp((x[rows] * y).tanh()), [b, index, c]),
        ("dropout, a frozen layer, a row of one", lambda x: mlp(frozen(x)), [c[:1]]),
    ]
    weights = list(mlp.parameters())
    return [
        _Case(name, f, [t.clone().requires_grad_(t.is_floating_point()) for t in arguments], weights)
        for name, f, arguments in cases
    ]


class _Outcome(NamedTuple):
    results: list[Tensor]
    inputs: list[Tensor | None]
    weights: list[Tensor | None]
    stream: list[Tensor]  # random numbers drawn after forward and after backward
    kept: int
    calls: int


def _run(case: _Case, run: Callable[..., Tensor], times: int = 1) -> _Outcome:
    """Inside a larger graph, as one layer of many: the arguments are results, and are used elsewhere too."""
    calls, kept = 0, 0

    def counted(*args: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return case.function(*args)

    torch.manual_seed(1)
    results, loss = [], torch.zeros(())
    for _ in range(times):
        arguments = [t.sin() if t.requires_grad else t for t in case.arguments]
        with Alive(*arguments, *case.weights) as alive:
            y = run(counted, *arguments)
            kept = max(kept, alive.now - y.untyped_storage().nbytes())
        results.append(y.detach().clone())
        loss = loss + torch.dropout(y, 0.5, True).square().sum() + sum(t.square().sum() for t in arguments)
    stream = [torch.rand(1)]
    trained = [t for t in case.arguments if t.requires_grad]
    for tensor in (*trained, *case.weights):
        tensor.grad = None
    loss.backward()
    stream.append(torch.rand(1))
    gradients = [
        [None if t.grad is None else t.grad.clone() for t in some] for some in (trained, case.weights)
    ]
    return _Outcome(results, *gradients, stream, kept, calls // times)


# ---- likely mistakes: checkpoints that are wrong in one thing ------------------------------------------------


def _checkpoint(restore: bool = True, put_back: bool = True, lose: bool = False) -> Callable:
    class Checkpoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, function: Callable, *args: Tensor) -> Tensor:
            ctx.function, ctx.random = function, torch.get_rng_state()
            ctx.save_for_backward(*args)
            return function(*args)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple:
            args = [t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
            now = torch.get_rng_state()
            if restore:
                torch.set_rng_state(ctx.random)
            with torch.enable_grad():
                y = ctx.function(*args)
            if restore and put_back:
                torch.set_rng_state(now)
            torch.autograd.backward(y, gradient)
            return None, *(None if lose else t.grad for t in args)

    return Checkpoint.apply


MISTAKES = {
    "when the second forward does not begin with the random state of the first": {"restore": False},
    "when the random state of before backward is not put back": {"put_back": False},
    "when backward returns no gradient for the tensors in `args`": {"lose": True},
}


def _mistakes(case: _Case, times: int, take: Callable[[_Outcome], Any]) -> dict[str, Callable[[], Any]]:
    return {
        sentence: lambda options=options: take(_run(case, _checkpoint(**options), times))
        for sentence, options in MISTAKES.items()
    }


@check
def check_08_2(report: Report, checkpoint: type[torch.autograd.Function]) -> None:
    torch.manual_seed(report.seed())
    for case in _cases():
        with report.case(case.name):
            _try(report, case, checkpoint, 1)
    with report.case("dropout, two calls before one backward"):
        _try(report, _cases()[2], checkpoint, 2)
    with report.case("an argument that is changed after forward"):
        _changed_in_place(report, checkpoint)


def _try(report: Report, case: _Case, checkpoint: type[torch.autograd.Function], times: int) -> None:
    try:
        got = _run(case, checkpoint.apply, times)
    except RuntimeError as error:
        _explain(report, str(error))
        raise
    want = _run(case, lambda f, *args: f(*args), times)
    _compare(report, "the result", got.results, want.results, None)
    grads = _mistakes(case, times, lambda outcome: outcome.inputs)
    _compare(report, "gradients of the arguments, bit for bit", got.inputs, want.inputs, grads)
    if any(gradient is None for gradient in got.weights):
        report.fail(
            "a weight of `function` has no gradient",
            task="The weights that `function` uses get their gradients, too.",
        )
    of_weights = _mistakes(case, times, lambda outcome: outcome.weights)
    of_weights["when backward goes through the second forward twice"] = lambda: [2 * w for w in want.weights]
    _compare(report, "gradients of the weights, bit for bit", got.weights, want.weights, of_weights)
    stream = _mistakes(case, times, lambda outcome: outcome.stream)
    stream = {sentence: program for sentence, program in stream.items() if "gradient" not in sentence}
    task = (
        "Numbers drawn after forward and after backward are those that would be drawn without a checkpoint."
    )
    _compare(report, "the random numbers drawn afterwards", got.stream, want.stream, stream, task)
    report.at_most(
        "bytes kept, besides arguments and result",
        got.kept,
        RANDOM_STATE,
        task="After forward nothing is kept but the tensors in `args`, the result and the random state",
    )
    report.at_most("runs of the function", got.calls, 2, task="`function` runs twice for each call.")


def _compare(
    report: Report, fact: str, got: Sequence, want: Sequence, mistakes: dict | None, task: str | None = None
) -> None:
    """``equal`` for a list of tensors, each of which may be missing."""
    if not any(g is None for g in got):
        return report.equal(fact, list(got), list(want), mistakes=mistakes, given=(), task=task)
    return report.fail(f"{fact}: {sum(g is None for g in got)} of {len(got)} are missing", task=task)


def _explain(report: Report, text: str) -> None:
    if "incorrect number of gradients" in text:
        report.fail(
            "backward returned the wrong number of gradients",
            task="It returns one value for each argument of `forward` but `ctx`",
        )
    if "backward through the graph a second time" in text:
        report.fail(
            "backward went on into the graph that the caller built before `forward`",
            task="Backward ends at the tensors in `args`",
        )


def _changed_in_place(report: Report, checkpoint: type[torch.autograd.Function]) -> None:
    leaf = torch.randn(4, requires_grad=True)
    x = leaf.sin()
    y = checkpoint.apply(torch.tanh, x)
    with torch.no_grad():
        x.mul_(2)
    try:
        y.sum().backward()
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        return report.ok("backward raises PyTorch's error")
    return report.fail(
        "backward raises nothing, and the gradient is that of other values",
        task="Keep tensors with `ctx.save_for_backward`, so that PyTorch reports one that was changed in place.",
    )
