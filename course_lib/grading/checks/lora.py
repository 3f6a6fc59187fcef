"""The check of 17.1: a LoRA layer around a frozen one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib.grading.report import Report, check

SHAPES = "`A`, of shape (rank, inputs), and `B`, of shape (outputs, rank), are `nn.Parameter`s of the layer."


class Case(NamedTuple):
    inputs: int
    outputs: int
    rank: int
    alpha: float
    shape: tuple[int, ...] = (7,)  # of x, without its last dimension
    bias: bool = True
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        words = [f"{self.inputs} to {self.outputs}, rank {self.rank}, alpha {self.alpha:g}"]
        words += [] if self.bias else ["no bias"]
        words += [] if len(self.shape) == 1 else [f"x of shape {(*self.shape, self.inputs)}"]
        return ", ".join(words + [str(self.dtype).removeprefix("torch.")] * (self.dtype != torch.float32))


CASES = [
    Case(12, 20, 4, 16),
    Case(20, 12, 3, 24, bias=False),
    Case(16, 16, 1, 2, shape=(3, 5)),
    Case(9, 14, 8, 4, shape=()),
    Case(12, 10, 2, 6, shape=(2, 3, 4), dtype=torch.float64),
    Case(8, 8, 4, 10, dtype=torch.bfloat16),
]


def _output(x: Tensor, base: dict, A: Tensor, B: Tensor, case: Case, scale: float | None = None) -> Tensor:
    """What is right, in float64; ``scale`` in place of alpha / rank."""
    x, A, B, W = (t.double() for t in (x, A, B, base["weight"]))
    change = (case.alpha / case.rank if scale is None else scale) * (x @ A.T @ B.T)
    return x @ W.T + _bias(base) + change


def _bias(base: dict) -> Tensor | float:
    return base["bias"].double() if "bias" in base else 0.0


Given = tuple[Tensor, dict, Tensor, Tensor, Case]
WRONG: dict[str, Callable[..., Tensor]] = {
    "when B A x is multiplied by alpha and not divided by the rank": lambda *g: _output(
        *g, scale=g[-1].alpha
    ),
    "when B A x is not multiplied by anything": lambda *g: _output(*g, scale=1.0),
    "when alpha is divided by the root of the rank": lambda *g: _output(
        *g, scale=g[-1].alpha / math.sqrt(g[-1].rank)
    ),
    "when alpha / rank is rounded down to a whole number": lambda *g: _output(
        *g, scale=g[-1].alpha // g[-1].rank
    ),
    "when the rank is divided by alpha": lambda *g: _output(*g, scale=g[-1].rank / g[-1].alpha),
    "when B A x is divided by the rank, and alpha is left out": lambda *g: _output(*g, scale=1 / g[-1].rank),
    "when the frozen layer's output is left out": lambda x, base, *g: (
        _output(x, base, *g) - x.double() @ base["weight"].double().T - _bias(base)
    ),
    "when the frozen layer's output is multiplied by alpha / rank, too": lambda x, base, A, B, case: (
        case.alpha / case.rank * _output(x, base, A, B, case, scale=1.0)
    ),
    "when the bias is left out": lambda x, base, *g: _output(x, base, *g) - _bias(base),
    "when the bias is added twice": lambda x, base, *g: _output(x, base, *g) + _bias(base),
}


@check
def check_17_1(report: Report, kind: type[nn.Module]) -> None:
    torch.manual_seed(report.seed())
    for case in CASES:
        with report.case(str(case)):
            _try_layer(report, kind, case)
    with report.case("on the meta device"):
        layer = kind(nn.Linear(12, 20, device="meta"), 4, 8)
        report.true(
            layer.A.is_meta and layer.B.is_meta,
            "A and B are there, too",
            f"A is on {layer.A.device} and B on {layer.B.device}",
            task="Both have the dtype and the device of `base.weight`.",
        )
    with report.case("100 to 80, rank 2, 32 tokens"):
        _count_layer(report, kind)


def _try_layer(report: Report, kind: type[nn.Module], case: Case) -> None:
    base = nn.Linear(case.inputs, case.outputs, bias=case.bias, dtype=case.dtype)
    before = {name: t.clone() for name, t in base.state_dict().items()}
    layer = kind(base, case.rank, case.alpha)
    _parts(report, layer, base, case)
    x = torch.randn(*case.shape, case.inputs, dtype=case.dtype)
    tolerance = 3e-2 if case.dtype == torch.bfloat16 else 1e-4
    starts = {
        "when B does not start with zeros": lambda x, base, A, B, case: (
            _output(x, base, A, B, case) if B.any() else None
        )
    }
    given = (x, before, layer.A.detach().clone(), layer.B.detach().clone(), case)
    report.close(
        "the output at the start is that of base",
        _forward(report, layer, x, case).detach().double(),
        _output(x, before, layer.A.detach(), torch.zeros_like(layer.B), case),
        tolerance=tolerance,
        # In bfloat16 a wrong start is rounded by more than the tolerance, so no program gives exactly what comes out.
        mistakes=None if case.dtype == torch.bfloat16 else starts | WRONG,
        given=given,
        task="At the start the layer gives what `base` gives",
    )
    report.true(
        bool(layer.A.any()),
        "A does not start with zeros",
        "A starts with zeros, so neither A nor B ever gets a gradient",
        task="`A` starts with random numbers",
    )
    with torch.no_grad():
        for t in (layer.A, layer.B):
            t.normal_()
    _trained(report, layer, x, before, case, tolerance)
    same = all(torch.equal(t, before[name]) for name, t in base.state_dict().items())
    report.true(same, "base is as it was", "base has other values", task="`base` keeps its values.")


def _forward(report: Report, layer: nn.Module, x: Tensor, case: Case) -> Tensor:
    """The output; where forward raises, the fact that explains it, if one does."""
    try:
        return layer(x)
    except Exception as error:
        if not case.bias and "NoneType" in str(error):
            report.fail(
                f"forward raises {type(error).__name__}, because `base.bias` is None",
                task="`base` may have no bias $b$.",
            )
        if len(case.shape) != 1 and _runs(layer, x.detach().reshape(-1, case.inputs)):
            report.fail(
                f"forward raises {type(error).__name__}, and for an x of two dimensions it does not",
                task="for `x` of shape (…, inputs)",
            )
        raise


def _runs(layer: nn.Module, x: Tensor) -> bool:
    try:
        layer(x)
    except Exception:
        return False
    return True


def _parts(report: Report, layer: nn.Module, base: nn.Linear, case: Case) -> None:
    for name, shape in (("A", (case.rank, case.inputs)), ("B", (case.outputs, case.rank))):
        got = getattr(layer, name, None)
        if not isinstance(got, nn.Parameter):
            report.fail(
                f"`layer.{name}` is {'not there' if got is None else 'a ' + type(got).__name__}",
                task=SHAPES,
            )
        report.equal(
            f"the shape of {name}",
            tuple(got.shape),
            shape,
            mistakes={"when A and B are made transposed": shape[::-1]},
            given=(),
            task=SHAPES,
        )
        report.true(
            got.dtype == case.dtype,
            f"{name} has the dtype of base",
            f"{name} is in {got.dtype}, and base in {case.dtype}",
            task="Both have the dtype and the device of `base.weight`.",
        )
    trained = {name for name, p in layer.named_parameters() if p.requires_grad}
    report.true(
        trained == {"A", "B"} and not any(p.requires_grad for p in base.parameters()),
        "A and B are trained, and nothing else",
        "the parameters of the given `base` still require gradients, and they are not among those of the layer"
        if trained == {"A", "B"}
        else f"trained are {', '.join(sorted(trained)) or 'none'}",
        task="Only `A` and `B` are trained: the parameters of `base` are frozen.",
    )


def _trained(report: Report, layer: nn.Module, x: Tensor, base: dict, case: Case, tolerance: float) -> None:
    x = x.requires_grad_()
    A, B = (t.detach().double().requires_grad_() for t in (layer.A, layer.B))
    exact = x.detach().double().requires_grad_()
    given = (x.detach(), base, A.detach(), B.detach(), case)
    output = _forward(report, layer, x, case)
    wanted = _output(exact, base, A, B, case)
    size = float(wanted.detach().abs().max())
    report.close(
        "the output",
        output.detach().double(),
        wanted.detach(),
        tolerance=tolerance * (1 if case.dtype != torch.bfloat16 else max(1.0, size)),
        mistakes=WRONG,
        given=given,
        task=r"`forward(x)` returns $W_0 x + b + \frac{\alpha}{r} B A x$ in the dtype of `x`",
    )
    report.true(
        output.dtype == case.dtype,
        "the output has the dtype of x",
        f"the output is in {output.dtype}, and x in {case.dtype}",
        task="in the dtype of `x`",
    )
    if case.dtype == torch.bfloat16:
        return
    weights = torch.randn_like(wanted)
    (output * weights.to(output.dtype)).sum().backward()
    (wanted * weights).sum().backward()
    through_base = weights.double() @ base["weight"].double()
    of_x = {
        "when the frozen layer runs without a gradient": exact.grad - through_base,
        "when no gradient goes through A and B to x": through_base,
    }
    for name, got, want in (("A", layer.A, A), ("B", layer.B, B), ("x", x, exact)):
        report.close(
            f"the gradient of {name}",
            None if got.grad is None else got.grad.double(),
            want.grad,
            tolerance=tolerance,
            mistakes=of_x if name == "x" else None,
            given=(),
            task="Gradients reach `A`, `B` and `x`.",
        )


def _count_layer(report: Report, kind: type[nn.Module]) -> None:
    inputs, outputs, rank, tokens = 100, 80, 2, 32
    layer = kind(nn.Linear(inputs, outputs), rank, 4)
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(tokens, inputs))
    dense, narrow = 2 * tokens * inputs * outputs, 2 * tokens * rank * (inputs + outputs)
    product = 2 * outputs * rank * inputs
    report.at_most(
        "FLOPs of matrix products in forward",
        counter.get_total_flops(),
        dense + narrow,
        mistakes={
            "when B A is computed first, and then multiplied by x": 2 * dense + product,
            "when W0 + B A is computed, and then multiplied by x": dense + product,
        },
        task="The matrix products of forward take no more FLOPs than those with $W_0$, `A` and `B`",
    )
