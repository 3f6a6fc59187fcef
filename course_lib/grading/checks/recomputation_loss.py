"""The check of 08.2: a loss whose logits exist for one chunk of rows at a time, in forward and in backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.utils._pytree import tree_leaves

from course_lib.grading.alive import Alive
from course_lib.grading.compare import difference
from course_lib.grading.report import Report, check

VOCABULARY = 512
RANDOM_STATE = 6000  # bytes of the CPU's random state, and a little
SCALE = 0.25  # of the sum in the caller's loss
Loss = Callable[[Callable[[Tensor, Tensor], Tensor], int, Tensor, Tensor], Tensor]


class _Case(NamedTuple):
    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    size: int
    leaf: Tensor
    targets: Tensor
    weights: list[Tensor]
    frozen: list[Tensor]
    times: int = 1

    @property
    def chunks(self) -> int:
        return -(-len(self.targets) // self.size)


def _cases() -> list[_Case]:
    frozen, head = nn.Linear(24, 24).requires_grad_(False), nn.Linear(24, VOCABULARY)

    def plain(x: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(head(x), targets, reduction="sum")

    def dropped(x: Tensor, targets: Tensor) -> Tensor:
        return plain(dropout(frozen(x), 0.5, True), targets)

    def case(name: str, function: Callable, rows: int, size: int, times: int = 1) -> _Case:
        leaf = torch.randn(2 * rows, 24)[::2].clone().requires_grad_()
        trained, still = list(head.parameters()), list(frozen.parameters())
        return _Case(name, function, size, leaf, torch.randint(VOCABULARY, (rows,)), trained, still, times)

    return [
        case("64 rows, 8 a chunk", plain, 64, 8),
        case("64 rows with dropout, 8 a chunk", dropped, 64, 8),
        case("50 rows with dropout, 16 a chunk", dropped, 50, 16),
        case("7 rows with dropout, 1 a chunk", dropped, 7, 1),
        case("5 rows with dropout, 20 a chunk", dropped, 5, 20),
        case("1 row, 1 a chunk", plain, 1, 1),
        case("dropout, two calls before one backward", dropped, 40, 10, times=2),
    ]


def _plain(function: Callable, size: int, x: Tensor, targets: Tensor) -> Tensor:
    """What the task asks for, and autograd keeps all."""
    chunks = zip(x.split(size), targets.split(size), strict=True)
    return torch.stack([function(*chunk) for chunk in chunks]).sum()


class _Outcome(NamedTuple):
    result: Tensor
    x: Tensor | None
    weights: list[Tensor | None]
    drawn: Tensor  # random numbers drawn after forward and after backward
    kept: int
    most: int
    calls: int
    changed: str  # which of the inputs has other values now, or ""


def _run(case: _Case, loss_of: Loss, counting: bool = True) -> _Outcome:
    """As the last part of a larger graph: ``x`` is a result, and is used elsewhere too.

    To count bytes takes most of the time; without ``counting`` those of the outcome mean nothing.
    """
    calls = 0

    def counted(x: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return case.function(x, targets)

    torch.manual_seed(1)
    targets = case.targets.clone()
    case.leaf.grad = None
    for weight in case.weights:
        weight.grad = torch.ones_like(weight)  # of an earlier batch
    known = *case.weights, *(w.grad for w in case.weights), *case.frozen, case.leaf, case.targets
    alive = Alive(*known)
    with alive if counting else nullcontext():
        xs = [case.leaf.sin() * (i + 1) for i in range(case.times)]
        for x in xs:
            alive.known[x.untyped_storage()] = True
            alive.made.pop(x.untyped_storage(), None)
        before = alive.now
        sums = [loss_of(counted, case.size, x, case.targets) for x in xs]
        kept = (alive.now - before + sum(_unseen(each.grad_fn, alive) for each in sums)) // case.times
        total = torch.zeros(())
        for x, each in zip(xs, sums, strict=True):
            total = total + SCALE * each + x.sum()
        drawn = [torch.rand(1)]
        total.backward()
        drawn.append(torch.rand(1))
    weights = [None if w.grad is None else w.grad - 1 for w in case.weights]
    result = torch.stack([each.detach().clone() for each in sums])
    same = all(torch.equal(x, case.leaf.sin() * (i + 1)) for i, x in enumerate(xs))
    changed = "targets" if not torch.equal(targets, case.targets) else "" if same else "x"
    case.targets.copy_(targets)
    return _Outcome(
        result, case.leaf.grad, weights, torch.cat(drawn), kept, alive.most, calls // case.times, changed
    )


def _unseen(node: Any, alive: Alive) -> int:
    """Bytes of the tensors that the caller's node holds and that no operator made, such as random states."""
    held = [getattr(node, "__dict__", {}), getattr(node, "saved_tensors", ())]
    storages = {t.untyped_storage() for t in tree_leaves(held) if isinstance(t, Tensor)}
    return sum(s.nbytes() for s in storages if s not in alive.known and s not in alive.made)


@check
def check_08_2(report: Report, loss: type[torch.autograd.Function]) -> None:
    torch.manual_seed(report.seed())
    for case in _cases():
        with report.case(case.name):
            _try(report, case, loss)
    for changed in ("x", "targets"):
        with report.case(f"{changed} is changed in place after forward"):
            _changed_in_place(report, loss, changed)


def _try(report: Report, case: _Case, loss: type[torch.autograd.Function]) -> None:
    try:
        got = _run(case, loss.apply)
    except RuntimeError as error:
        _explain(report, str(error))
        raise
    want = _run(case, _plain, counting=False)
    wrong = {sentence: _loss_in_chunks(**options) for sentence, options in MISTAKES.items()}

    outcomes: dict[str, _Outcome] = {}  # of the mistakes: each runs once for all facts

    def outcome_of(sentence: str) -> _Outcome:
        if sentence not in outcomes:
            outcomes[sentence] = _run(case, wrong[sentence], counting=False)
        return outcomes[sentence]

    def same(
        what: str, take: Callable[[_Outcome], Any], task: str, more: Mapping[str, Any] | None = None
    ) -> None:
        mistakes = {s: lambda s=s: take(outcome_of(s)) for s in wrong}
        report.close(what, take(got), take(want), mistakes=mistakes | (more or {}), given=(), task=task)

    task = "returns the sum of `function(x[i : i + size], targets[i : i + size])`"
    same("the sum", lambda outcome: outcome.result, task)
    if got.x is None:
        report.fail("x has no gradient")
    task = "Result, gradients and random numbers are those of this sum under plain autograd."
    same("the gradient of x", lambda outcome: outcome.x, task)
    task = "The gradients of the weights that `function` uses are added to their `.grad`"
    if any(gradient is None for gradient in got.weights):
        report.fail("a weight of `function` has lost its `.grad`", task=task)
    of_weights = _flat(want.weights)
    if difference(_flat(got.weights), of_weights / SCALE, 1e-5) is None:
        task = "`gradient` is the gradient of the caller's loss by your sum. It is not always 1."
    besides = {
        "when no gradient is added to the weights": 0 * of_weights,
        "when what was in a weight's `.grad` before is lost": of_weights - 1,
        "when the gradients of the weights are computed without `gradient`": of_weights / SCALE,
    }
    same("the gradients of the weights", lambda outcome: _flat(outcome.weights), task, besides)
    task = "Random numbers drawn after forward or after backward are the same as without your function."
    same("the random numbers drawn afterwards", lambda outcome: outcome.drawn, task)
    task, fact = "`x` and `targets` stay as they are.", "x and targets are as they were"
    report.true(not got.changed, fact, f"after backward, {got.changed} has other values", task=task)
    report.at_most(
        "bytes kept, besides x and targets",
        got.kept,
        RANDOM_STATE,
        task="After forward nothing is kept but `x`, `targets`, the result and one random state",
    )
    task = "In backward no more is alive at once than one chunk needs, besides the gradients."
    report.at_most("bytes alive at once", got.most, _room(case), task=task)
    report.at_most("runs of the function", got.calls, 2 * case.chunks, task="It runs twice for each chunk.")


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def _room(case: _Case) -> int:
    """Bytes for logits of one chunk and their gradient, gradients by weights and ``x``, and the random states.

    By formula, since versions of PyTorch differ in what they need for a moment.
    """
    rows = min(case.size, len(case.targets))
    logits = 2 * rows * VOCABULARY * 4
    gradients = 8 * case.leaf.nbytes * case.times + 2 * sum(w.nbytes for w in case.weights)
    return logits + gradients + (1 + case.times) * RANDOM_STATE


# ---- likely mistakes: the same, wrong in one thing -----------------------------------------------------------


def _loss_in_chunks(
    restore: bool = True,
    put_back: bool = True,
    lose: bool = False,
    again: bool = False,
    from_the_end: bool = False,
    ones: bool = False,
    whole_only: bool = False,
) -> Loss:
    def starts_of(x: Tensor, size: int) -> range:
        last = len(x) - size + 1 if whole_only and len(x) >= size else len(x)
        return range(0, last, size)

    class LossInChunks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, function: Callable, size: int, x: Tensor, targets: Tensor) -> Tensor:
            ctx.function, ctx.size, ctx.random = function, size, torch.get_rng_state()
            ctx.save_for_backward(x, targets)
            return sum(function(x[i : i + size], targets[i : i + size]) for i in starts_of(x, size))

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple:
            x, targets = ctx.saved_tensors
            now, size = torch.get_rng_state(), ctx.size
            by_x = torch.zeros_like(x)
            if restore:
                torch.set_rng_state(ctx.random)
            starts = starts_of(x, size)
            for i in reversed(starts) if from_the_end else starts:
                if again:
                    torch.set_rng_state(ctx.random)
                part = x[i : i + size].detach().requires_grad_()
                with torch.enable_grad():
                    y = ctx.function(part, targets[i : i + size])
                torch.autograd.backward(y, torch.ones_like(gradient) if ones else gradient)
                by_x[i : i + size] = part.grad
            if put_back:
                torch.set_rng_state(now)
            return None, None, None if lose else by_x, None

    return LossInChunks.apply


MISTAKES = {
    "when backward does not begin with the random state of forward": {"restore": False},
    "when backward does not begin with the random state of forward, and that of before backward is not put back": {
        "restore": False,
        "put_back": False,
    },
    "when the random state of before backward is not put back": {"put_back": False},
    "when every chunk of backward begins with the same random state": {"again": True},
    "when backward takes the chunks from the last to the first, and each draws another's numbers": {
        "from_the_end": True
    },
    "when backward returns no gradient for x": {"lose": True},
    "when backward does not use `gradient`": {"ones": True},
    "when a shorter chunk at the end is left out": {"whole_only": True},
}


def _explain(report: Report, text: str) -> None:
    if "incorrect number of gradients" in text:
        report.fail(
            "backward returned the wrong number of gradients",
            task="It returns one value for each argument of `forward` but `ctx`",
        )
    if "backward through the graph a second time" in text:
        report.fail(
            "backward went on into the graph that the caller built before `forward`",
            task="Backward ends at `x`",
        )


def _changed_in_place(report: Report, loss: type[torch.autograd.Function], changed: str) -> None:
    tensors = {"x": torch.randn(4, 3, requires_grad=True).sin(), "targets": torch.arange(4)}
    y = loss.apply(lambda rows, targets: (rows.T * targets).tanh().sum(), 2, tensors["x"], tensors["targets"])
    with torch.no_grad():
        tensors[changed].mul_(2)
    try:
        y.backward()
    except RuntimeError as error:
        if "inplace" not in str(error):
            raise
        return report.ok("backward raises PyTorch's error")
    task = "Keep `x` and `targets` with `ctx.save_for_backward`, so that PyTorch reports if one was changed in place."
    return report.fail("backward raises nothing, and the gradient is that of other values", task=task)
