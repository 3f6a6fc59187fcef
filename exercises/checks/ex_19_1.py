"""19.1: 256 levels for the numbers of a chunk, and how far a number can be from its level."""

import torch
from torch import Tensor

from course_lib.grading.judge import Fact, record

BACK = "`dequantise(codes, lows, steps, chunk)` returns the level of each code, as a tensor of shape (n,)."
FACTS = {
    "three": Fact("what comes back", "`quantise(x, chunk)` returns three…"),
    "shape": Fact("what comes back", BACK),
    "back": Fact("the numbers that come back", BACK, tolerance=1e-5),
    "near": Fact("the distance", "So the error of a number is at most half the distance of two levels."),
    "kept": Fact("x", "`x` stays as it is."),
    "bytes": Fact("bytes of codes, lows and steps beyond 1 a number and 8 a chunk", "the three…", most=0),
}

equal = "If all numbers of a chunk are equal, they come back as they are."
# equal: the chunk whose numbers are all equal; another: is quantised before the first one comes back
Case = record("n chunk name", size=1.0, equal=None, view=False, another=False, task=None)
CASES = [
    Case(256, 256, "256 numbers, chunks of 256"),
    Case(600, 256, "600 numbers, chunks of 256"),
    Case(300, 100, "300 numbers, chunks of 100, numbers around one in ten thousand", size=1e-4),
    Case(90, 30, "90 numbers, chunks of 30, a chunk of equal numbers", equal=1, task=equal),
    Case(200, 64, "200 numbers, chunks of 64, every second number of a tensor", view=True),
    Case(5, 1, "5 numbers, chunks of 1"),
    Case(3, 10, "3 numbers, chunks of 10"),
    Case(0, 16, "0 numbers, chunks of 16"),
    Case(256, 64, "two tensors, one after the other", another=True),
]


def numbers(case: Case) -> Tensor:
    """Numbers that lie on no border between two levels, so that every right answer finds the same levels."""
    draw, parts = torch.Generator().manual_seed(case.seed), [torch.empty(0)]
    for number, part in enumerate(torch.zeros(case.n).split(case.chunk) if case.n else ()):
        drawn = chunk(len(part), case.size, len(part) < case.chunk, draw)
        parts.append(drawn[:1].expand(len(part)) if number == case.equal else drawn)
    x = torch.cat(parts)
    return torch.stack([x, x.flip(0)], 1)[:, 0] if case.view else x


def chunk(n: int, size: float, short: bool, draw: torch.Generator) -> Tensor:
    while True:
        low, wide = torch.randn((), generator=draw), 0.5 + 1.5 * torch.rand((), generator=draw)
        low = 0.5 + low.abs() if short else low  # far from 0, so that zeros put behind it widen its range
        place = torch.randint(1, 255, (n,), generator=draw) + 0.8 * torch.rand(n, generator=draw) - 0.4
        ends = torch.randperm(n, generator=draw)[:2]
        place[ends] = torch.tensor([0.0, 255.0])[: len(ends)]
        part = size * (low + wide * place / 255)
        reach = part.max() - part.min()
        if n == 1 or reach / (reach / 255) == 255:  # not a little less: an answer may round down
            return part


def observe(answer, case: Case) -> dict:
    quantise, dequantise = answer
    x = numbers(case)
    before, made = x.clone(), quantise(x, case.chunk)
    if not (isinstance(made, tuple | list) and len(made) == 3 and all(isinstance(t, Tensor) for t in made)):
        return {"three": "`quantise` does not return three tensors"}
    if case.another:
        quantise(numbers(case._replace(seed=case.seed + 1)), case.chunk)
    back = dequantise(*made, case.chunk)
    if (shape := tuple(getattr(back, "shape", ()))) != x.shape:
        return {"shape": f"`dequantise` gives the shape {shape}, and x has {tuple(x.shape)}"}
    near = all(map(within, back.double().split(case.chunk), before.split(case.chunk))) if case.n else True
    return {
        "back": back.detach().double() / case.size,
        "near": "" if near else "a number is farther from x than half a step",
        "kept": "" if torch.equal(x, before) else "`x` has changed",
        "bytes": max(0, sum(t.nbytes for t in made) - case.n - 8 * -(-case.n // case.chunk)),
    }


def within(got: Tensor, part: Tensor) -> bool:
    half = (part.max() - part.min()) / 255 / 2
    return not ((got - part).abs() > half * 1.01 + 1e-6 * part.abs().max()).any()
