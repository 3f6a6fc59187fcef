"""The checks of chapter 08: a chain taken back by hand, where to cut it, and what to recompute.

The check of the checkpoint, 08.2, stands in ``recomputation_checkpoint``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations

import torch
from torch import Tensor

from course_lib.grading.checks.recomputation_checkpoint import Alive
from course_lib.grading.report import Report, check
from simulator.inputs.chunks import chunk_sizes
from simulator.predict.recomputation import Segment, least_peak, peak_bytes

Layer = Callable[[Tensor], Tensor]


class _Counted:
    """A layer without weights that knows how often it ran."""

    def __init__(self, factor: float) -> None:
        self.factor, self.runs = factor, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.runs += 1
        return (self.factor * x).sin().roll(1)  # so that layers do not commute


@check
def check_08_1(
    report: Report, chain_backward: Callable[[Sequence[Layer], Tensor, Tensor, int], Tensor]
) -> None:
    for n, every in [(16, 4), (7, 3), (6, 1), (5, 8)]:
        report.case(f"{n} layers, a checkpoint every {every}")
        layers = [_Counted(0.5 + i / n) for i in range(n)]
        generator = torch.Generator().manual_seed(n)
        x, gradient = (torch.randn(500, generator=generator) for _ in range(2))
        leaf = x.clone().requires_grad_()
        y = leaf
        for layer in layers:
            y = layer(y)
        y.backward(gradient)
        want = leaf.grad
        slips = _slips_of_a_chain(layers, x, gradient, every)
        for layer in layers:
            layer.runs = 0
        before = x.clone(), gradient.clone()
        with Alive(x, gradient) as alive:
            got = chain_backward(layers, x, gradient, every)
        report.close("the gradient of x", got, want, tolerance=1e-6, mistakes=slips)
        report.true(
            before[0].equal(x) and before[1].equal(gradient) and x.grad is None,
            "x and gradient are as they were",
            "x or gradient has changed, or x has got a .grad",
            "x belongs to the caller: go on from a detached copy of it that requires a gradient.",
        )
        runs = sum(layer.runs for layer in layers)
        report.at_most(
            "layers run forward",
            runs,
            2 * n,
            likely="start again from the nearest checkpoint, and go back through its whole segment at once.",
        )
        # Checkpoints; what autograd saves of one segment (each layer its product); a few on their way.
        segment = min(every, n)
        limit = x.nbytes * (-(-n // every) + segment + 5)
        report.at_most(
            "bytes alive at once",
            alive.most,
            limit,
            likely="the first forward runs without autograd and keeps every `every`-th input only; a segment that "
            "is done lets go of its graph.",
        )


def _slips_of_a_chain(
    layers: Sequence[Layer], x: Tensor, gradient: Tensor, every: int
) -> Mapping[str, Tensor]:
    inputs = [x]
    for layer in layers:
        inputs.append(layer(inputs[-1]))
    starts = list(range(0, len(layers), every))

    def back(start: int, end: int, gradient: Tensor, begin: Tensor | None = None) -> Tensor:
        leaf = (inputs[start] if begin is None else begin).detach().requires_grad_()
        y = leaf
        for layer in layers[start:end]:
            y = layer(y)
        return torch.autograd.grad(y, leaf, gradient)[0]

    upwards = wrong_point = gradient
    for start in starts:
        upwards = back(start, min(start + every, len(layers)), upwards)
    for start in reversed(starts):
        wrong_point = back(start, min(start + every, len(layers)), wrong_point, x)
    whole = gradient
    for start in reversed(range(0, len(layers) // every * every, every)):
        whole = back(start, start + every, whole)
    return {
        "each segment begins with the gradient that the one behind it returned, not with the caller's.": back(
            0, min(every, len(layers)), gradient
        ),
        "from first to last: backward begins with the last segment.": upwards,
        "every segment begins at x: keep its own input.": wrong_point,
        "the last segment may be shorter; it is missing.": whole,
    }


def _segments(starts: Sequence[int], kept: Sequence[float], saved: Sequence[float]) -> list[Segment]:
    ends = [*starts[1:], len(saved)]
    return [Segment(kept[i], sum(saved[i:k])) for i, k in zip(starts, ends, strict=True)]


@check
def check_08_3(report: Report, cut: Callable[[list[int], list[int]], list[int]]) -> None:
    draw = random.Random(83)
    chains = {}
    for n in (9, 12, 40):
        chains[f"{n} unequal layers"] = (
            [draw.randint(1, 30) for _ in range(n)],
            [draw.choice((5, 10, 20, 90)) for _ in range(n)],
        )
    chains |= {"16 equal layers": ([8] * 16, [8] * 16), "one layer": ([5], [7])}
    # A network that narrows: inputs shrink from layer to layer, as in a ResNet.
    chains["12 layers that shrink"] = (
        [2 ** (6 - i // 2) for i in range(12)],
        [2 ** (7 - i // 2) for i in range(12)],
    )
    for name, (kept, saved) in chains.items():
        report.case(name)
        n = len(saved)
        starts = cut(list(kept), list(saved))
        if not isinstance(starts, list | tuple) or not all(isinstance(i, int) for i in starts):
            report.fail(f"the result is {starts!r}, not a list of layers", "a `return` is missing?")
        starts = list(starts)
        if not starts or starts[0] != 0:
            report.fail(
                f"the segments begin at {_short(starts)}",
                "the first segment begins at layer 0: its input is kept as well.",
            )
        if starts != sorted(set(starts)) or starts[-1] >= n:
            report.fail(
                f"the segments begin at {_short(starts)}, with layers 0 to {n - 1}",
                "where each segment begins, in rising order, without the end of the last.",
            )
        report.ok("the segments cover the chain")
        root = round(n**0.5)
        sizes = chunk_sizes(n, root)
        likely = (
            "take the inputs of earlier segments into account: they are still there when this one comes back."
        )
        if len(starts) == n:
            likely = "a segment for every layer keeps every input: join some."
        elif len(starts) == 1:
            likely = "one segment brings everything back at once: cut it."
        elif starts == [sum(sizes[:i]) for i in range(root)]:
            likely = (
                "√n equal segments: the later one comes back, the more inputs are kept; let it be shorter."
            )
        peak = peak_bytes(_segments(starts, kept, saved))
        report.at_most("peak", int(peak), int(least_peak(kept, saved)), likely=likely)


def _short(starts: Sequence[int]) -> str:
    return ", ".join(map(str, starts[:8])) + (", …" if len(starts) > 8 else "")


# What one GPT block keeps, by parts whose inputs stay: bytes in sbh, and FLOPs to bring them back in b s h (2 a
# product). Both papers' numbers at GPT-3's shape: s = 2048, h = 12288, a = 96.
S, H = 2048, 12288
PARTS = {
    "norm 1": (2, 8),
    "query, key, value": (6, 6 * H),
    "attention core": (80, 2 * S),
    "dropout of attention": (1, 1),
    "norm 2": (2, 8),
    "first linear layer": (8, 8 * H),
    "GELU": (8, 40),
    "dropout of the MLP": (1, 1),
}


@check
def check_08_4(report: Report, choose: Callable[[dict[str, tuple[int, int]], int], set[str]]) -> None:
    whole = sum(size for size, _ in PARTS.values())
    cases = [(f"GPT-3's block, {budget} of {whole} sbh", PARTS, budget) for budget in (40, 14, whole, 0)]
    draw = random.Random(84)
    cases.append(("two parts, and the better bargain is not enough", {"a": (9, 8), "b": (10, 10)}, 9))
    for n in (6, 10):
        parts = {f"part {i}": (draw.randint(1, 40), draw.randint(1, 40)) for i in range(n)}
        cases.append((f"{n} parts", parts, sum(size for size, _ in parts.values()) * 2 // 5))
    for name, parts, budget in cases:
        report.case(name)
        answer = choose(dict(parts), budget)
        if not isinstance(answer, set | frozenset | list | tuple) or not set(answer) <= set(parts):
            report.fail(f"the result is {answer!r:.80}, not names of parts", "a `return` is missing?")
        again = set(answer)
        best = _least_work(parts, budget)
        kept = sum(size for part, (size, _) in parts.items() if part not in again)
        if kept > budget:
            likely = "brought back bytes are not kept: drop parts until what remains fits."
            if again and sum(work for part, (_, work) in parts.items() if part not in again) == best:
                likely = "the budget is for what is kept, and what is kept you return: the others are wanted."
            report.fail(f"{kept} are kept, and the budget is {budget}", likely)
        report.ok("what is kept fits the budget")
        likely = "one part too many, or a dear one: compare all sets that fit."
        if again == set(parts):
            likely = "everything is recomputed: keep what fits."
        elif any(kept + parts[p][0] <= budget for p in again):
            likely = "there is room to keep one more of the parts that you recompute."
        report.at_most("FLOPs repeated", sum(parts[p][1] for p in again), best, likely=likely)


def _least_work(parts: Mapping[str, tuple[int, int]], budget: int) -> int:
    total = sum(size for size, _ in parts.values())
    sets = chain.from_iterable(combinations(parts, count) for count in range(len(parts) + 1))
    return min(
        sum(parts[p][1] for p in again) for again in sets if total - sum(parts[p][0] for p in again) <= budget
    )
