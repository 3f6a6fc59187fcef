"""The check of 18.2: a prefix that a network computes, and that is folded after training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_lib.grading.report import Report, check

ORDER = (
    "The last dimension of the result holds one layer after another: first a layer's keys, then its values"
)
BEFORE = "a network computes them during training."
GIVEN = "backward reaches `E` and the network."
ACTS = "Before `fold()`, dropout acts in training mode."
SHAPE = "`forward(layer)` returns P_K and P_V of that layer, each `(heads, n, size)`"
FOLDED = "After `fold()`, `forward(layer)` returns what it returned before in evaluation mode"
STILL = "It can be trained further"
HELD = "After `fold()`, `parameters()` and `state_dict()` hold no more than layers · 2 · n · heads · size numbers."
NOT_SEEN = (
    "a module does not see a parameter that stands in a plain list or dict, or that is no `nn.Parameter`."
)
TWICE = "A second `fold()` changes nothing."


class Case(NamedTuple):
    name: str
    n: int
    d: int
    layers: int
    heads: int
    size: int
    dropout: float = 0.0
    dtype: torch.dtype = torch.float32
    training: bool = True  # the module's mode when it is folded


CASES = (
    Case("3 layers, 2 heads of size 4, 5 virtual tokens", 5, 8, 3, 2, 4),
    Case("1 layer, 1 head, 1 virtual token", 1, 4, 1, 1, 4),
    Case("2 layers, 3 heads of size 2, E of another width", 4, 10, 2, 3, 2),
    Case("dropout in the network, training mode", 4, 8, 2, 2, 4, dropout=0.5),
    Case("double precision, evaluation mode", 2, 6, 2, 2, 3, dtype=torch.float64, training=False),
)


def _parts(case: Case, seed: int) -> tuple[nn.Parameter, nn.Sequential]:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(case.d, 6),
            nn.Tanh(),
            nn.Dropout(case.dropout),
            nn.Linear(6, case.layers * 2 * case.heads * case.size),
        ).to(case.dtype)
        return nn.Parameter(torch.randn(case.n, case.d, dtype=case.dtype)), network


@check
def check_18_2(report: Report, Reparametrised: Callable[..., Any]) -> None:
    for case in CASES:
        with report.case(case.name):
            _check(report, case, Reparametrised)


def _check(report: Report, case: Case, make: Callable[..., Any]) -> None:
    seed = report.seed()
    E, network = _parts(case, seed)
    prefix = make(E, network, case.layers, case.heads)
    if not isinstance(prefix, nn.Module):
        report.fail(f"it is a {type(prefix).__name__}, not a module", task="Write the module")
    if case.dropout:
        once, again = _all(report, case, prefix), _all(report, case, prefix)
        report.true(
            not once.equal(again),
            "dropout acts in training mode",
            "dropout does not act in training mode: two calls give the same",
            task=ACTS,
        )
    else:
        _check_forward(report, case, prefix, (E, network), seed)
    prefix.eval()
    network.eval()
    before = _all(report, case, prefix).detach()  # a layout that is wrong in `forward` is told once, there
    network.train(case.training)
    prefix.train(case.training)
    calls: list[int] = []
    network.register_forward_hook(lambda *_: calls.append(1))
    spare = _parts(case, seed)
    torch.manual_seed(seed)
    prefix.fold()
    calls.clear()
    mode, other = ("training", "evaluation") if case.training else ("evaluation", "training")
    report.true(
        bool(prefix.training) == case.training,
        f"it is in {mode} mode still",
        f"it is in {other} mode after `fold()`",
        task="its mode stays",
    )
    found = _all(report, case, prefix)
    dropped = {
        "when dropout is on while it folds": lambda case: _split(case, _computed(case, spare, seed, True))
    }
    report.close(
        "the same keys and values after `fold()`",
        found.detach(),
        before,
        mistakes=(dropped if case.dropout else {}) | _mistakes(spare),
        given=(case,),
        task=FOLDED,
    )
    if calls:
        report.fail(
            "the network has been computed again after `fold()`", task="without computing the network"
        )
    report.ok("the network is not computed any more")
    _trains_on(report, prefix, found)
    held = sum(p.numel() for p in prefix.parameters())
    state = sum(t.numel() for t in prefix.state_dict().values())
    numbers = case.layers * 2 * case.n * case.heads * case.size
    again = _fold_again(report, case, prefix)
    report.close("a second `fold()` changes nothing", again.detach(), found.detach(), task=TWICE)
    report.at_most(
        "numbers in `parameters()` and in `state_dict()`",
        max(held, state),
        numbers,
        mistakes={
            "when the network and E are still parts of the module": numbers
            + E.numel()
            + sum(p.numel() for p in network.parameters())
        },
        task=HELD,
    )


def _check_forward(
    report: Report,
    case: Case,
    prefix: nn.Module,
    given: tuple[nn.Parameter, nn.Module],
    seed: int,
) -> None:
    spare = _parts(case, seed)
    found = _all(report, case, prefix)
    report.close(
        "keys and values of every layer",
        found.detach(),
        _split(case, spare[1](spare[0])).detach(),
        mistakes=_mistakes(spare),
        given=(case,),
        task=ORDER,
    )
    if not found.requires_grad:
        report.fail("backward reaches neither `E` nor the network", task=GIVEN)
    upstream = torch.ones_like(found).flatten().cumsum(0).view_as(found) / found.numel()
    (found * upstream).sum().backward()
    (_split(case, spare[1](spare[0])) * upstream).sum().backward()
    theirs = {p for p in prefix.parameters() if p.grad is not None}
    if sum(p.numel() for p in theirs) != sum(p.numel() for p in (spare[0], *spare[1].parameters())):
        report.fail("`E` and the network are not the module's parameters, or got no gradient", task=GIVEN)
    for name, leaves in (("E", [given[0]]), ("network", given[1].parameters())):
        if any(p.grad is None for p in leaves):
            report.fail(f"the module trains a copy: the given `{name}` has no gradient", task=GIVEN)
    total = sum(p.grad.double().square().sum() for p in theirs).sqrt()
    want = sum(p.grad.double().square().sum() for p in (spare[0], *spare[1].parameters())).sqrt()
    report.close("the norm of all gradients", total, want, tolerance=1e-4, task=GIVEN)
    prefix.zero_grad()
    with torch.no_grad():  # as a step of the optimizer would
        given[0].mul_(-0.5)
    report.close(
        "keys and values after a step of training",
        _all(report, case, prefix).detach(),
        _split(case, spare[1](-0.5 * spare[0])).detach(),
        mistakes={"when the network is computed once, and what it gave is kept": found.detach()},
        task=BEFORE,
    )
    with torch.no_grad():
        given[0].mul_(-2)


def _all(report: Report, case: Case, prefix: nn.Module) -> Tensor:
    """Keys and values of all layers: ``(layers, 2, heads, n, size)``."""
    found = []
    for layer in range(case.layers):
        pair = prefix(layer)
        if not isinstance(pair, (tuple, list, Tensor)) or len(pair) != 2:
            report.fail("the result is no pair of keys and values", task=SHAPE)
        for name, x in zip(("P_K", "P_V"), pair, strict=True):
            want = (case.heads, case.n, case.size)
            if tuple(x.shape) != want:
                report.fail(f"{name} has the shape {tuple(x.shape)}, expected {want}", task=SHAPE)
        found.append(torch.stack(tuple(pair)))
    return torch.stack(found)


def _trains_on(report: Report, prefix: nn.Module, found: Tensor) -> None:
    leaves = [p for p in prefix.parameters() if p.requires_grad and p.is_leaf]
    if not found.requires_grad or not leaves:
        report.fail("after `fold()` nothing can be trained", task=STILL)
    found.sum().backward()
    if all(p.grad is None for p in leaves):
        report.fail(
            "the numbers that `forward` returns after `fold()` are not in `parameters()`",
            NOT_SEEN,
            task=STILL,
        )
    reached = sum(p.grad.sum() for p in leaves if p.grad is not None)
    report.close(
        "it can be trained further: sum of the gradients",
        torch.as_tensor(reached).double(),
        torch.tensor(float(found.numel())),
        task=STILL,
    )
    prefix.zero_grad()


def _fold_again(report: Report, case: Case, prefix: nn.Module) -> Tensor:
    try:
        prefix.fold()
    except Exception as error:
        report.fail(f"a second `fold()` raises {type(error).__name__}", task=TWICE)
    return _all(report, case, prefix)


# ---- what is right, and likely mistakes --------------------------------------------------------------------------


@torch.no_grad()
def _computed(case: Case, parts: tuple[nn.Parameter, nn.Module], seed: int, training: bool) -> Tensor:
    E, network = parts
    network.train(training)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return network(E)


def _split(case: Case, out: Tensor, order: tuple[int, ...] = (1, 2, 3, 0, 4)) -> Tensor:
    """``(n, layers 2 heads size)`` to ``(layers, 2, heads, n, size)``."""
    return out.view(case.n, case.layers, 2, case.heads, case.size).permute(order)


def _mistakes(parts: tuple[nn.Parameter, nn.Module]) -> dict[str, Callable[[Case], Tensor]]:
    """Sentence -> what the mistake gives from these parts, in evaluation mode."""

    def wrong(change: Callable[[Case, Tensor], Tensor]) -> Callable[[Case], Tensor]:
        return lambda case: change(case, _computed(case, parts, 0, False))

    def outermost(case: Case, out: Tensor) -> Tensor:
        shape = case.n, 2, case.layers, case.heads, case.size
        return out.view(shape).permute(2, 1, 3, 0, 4)

    def sizes_first(case: Case, out: Tensor) -> Tensor:
        shape = case.n, case.layers, 2, case.size, case.heads
        return out.view(shape).permute(1, 2, 4, 0, 3)

    def head_first(case: Case, out: Tensor) -> Tensor:
        shape = case.n, case.layers, case.heads, 2, case.size
        return out.view(shape).permute(1, 3, 2, 0, 4)

    def alternate(case: Case, out: Tensor) -> Tensor:
        shape = case.n, case.layers, case.heads, case.size, 2
        return out.view(shape).permute(1, 4, 2, 0, 3)

    def viewed(case: Case, out: Tensor) -> Tensor:
        return out.reshape(case.layers, 2, case.heads, case.n, case.size)

    def not_moved(case: Case, out: Tensor) -> Tensor:
        per_layer = out.view(case.n, case.layers, -1).transpose(0, 1)
        return per_layer.reshape(case.layers, 2, case.heads, case.n, case.size)

    def chunks(case: Case, out: Tensor) -> Tensor:
        halves = out.view(case.n, case.layers, 2, -1).permute(1, 2, 0, 3)
        return halves.reshape(case.layers, 2, case.heads, case.n, case.size)

    return {
        "when values come before keys": wrong(lambda case, out: _split(case, out).flip(1)),
        "when all keys come before all values, and layers after that": wrong(outermost),
        "when the place in the head comes before the head": wrong(sizes_first),
        "when the head comes before key and value": wrong(head_first),
        "when numbers of keys and of values alternate": wrong(alternate),
        "when all numbers are viewed as `(layers, 2, heads, n, size)` without moving n": wrong(viewed),
        "when the numbers of one layer are viewed as `(2, heads, n, size)` without moving n": wrong(
            not_moved
        ),
        "when keys `(n, heads · size)` are viewed as `(heads, n, size)` without moving n": wrong(chunks),
        "when every layer gets what the first one gets": wrong(
            lambda case, out: _split(case, out)[:1].expand(case.layers, -1, -1, -1, -1)
        ),
    }
