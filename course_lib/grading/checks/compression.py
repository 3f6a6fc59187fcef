"""The check of 19.1: 256 levels for the numbers of a chunk, and how far a number can be from its level."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.grading.report import Report, check

LEVELS = "the first level is the smallest number of the chunk, and the last level is its largest number"
NEAREST = "returns these levels, as a tensor of shape (n,)"


class Case(NamedTuple):
    n: int
    chunk: int
    size: float = 1.0
    equal: int | None = None  # the chunk whose numbers are all equal
    view: bool = False

    def __str__(self) -> str:
        words = [f"{self.n} number{'s' * (self.n != 1)}, chunks of {self.chunk}"]
        words += ["numbers around one in ten thousand"] if self.size < 1 else []
        words += ["a chunk of equal numbers"] if self.equal is not None else []
        words += ["every second number of a tensor"] if self.view else []
        return ", ".join(words)


CASES = [
    Case(256, 256),
    Case(600, 256),
    Case(512, 128),
    Case(300, 100, size=1e-4),
    Case(90, 30, equal=1),
    Case(200, 64, view=True),
    Case(5, 1),
    Case(3, 10),
    Case(0, 16),
]


def draw(case: Case) -> Tensor:
    """Numbers that lie on no border between two levels, so that every right answer finds the same levels."""
    parts = []
    for number, part in enumerate(torch.zeros(case.n).split(case.chunk) if case.n else ()):
        short = len(part) < case.chunk  # far from 0, so that zeros put behind it widen its range
        drawn = _draw_part(len(part), case.size, above=0.5 if short else None)
        parts.append(drawn[:1].expand(len(part)) if number == case.equal else drawn)
    x = torch.cat([torch.empty(0), *parts])
    return torch.stack([x, x.flip(0)], 1)[:, 0] if case.view else x


def _draw_part(n: int, size: float, above: float | None = None) -> Tensor:
    while True:
        low, wide = torch.randn(()), 0.5 + 1.5 * torch.rand(())
        low = low if above is None else above + low.abs()
        place = torch.randint(1, 255, (n,)).float() + (0.8 * torch.rand(n) - 0.4)
        ends = torch.randperm(n)[:2]
        place[ends] = torch.tensor([0.0, 255.0])[: len(ends)]
        part = size * (low + wide * place / 255)
        reach = part.max() - part.min()
        if n == 1 or reach / (reach / 255) == 255:  # not a little less: an answer may round down
            return part


def levels(
    x: Tensor,
    chunk: int,
    *,
    nearest: Callable[[Tensor], Tensor] = torch.round,
    parts: int = 255,
    last: int | None = None,
    one: bool = False,
    around_zero: bool = False,
    add_low: bool = True,
    last_chunk: bool = True,
    filled: bool = False,
    half: bool = False,
    symmetric: bool = False,
    signed: bool = False,
    added: float = 0.0,
    count: bool = False,
) -> Tensor:
    """What comes back; the settings make single mistakes of it."""
    if not len(x):
        return x.double()
    if around_zero:
        return torch.cat([_around_zero(part) for part in x.double().split(chunk)])
    back = []
    for part in x.chunk(chunk) if count else x.split(max(1, len(x)) if one else chunk):
        ends = torch.cat([part, part.new_zeros(1)]) if filled and len(part) < chunk else part
        low, high = (-ends.abs().max(), ends.abs().max()) if symmetric else (ends.min(), ends.max())
        step = (high - low) / parts + added
        code = nearest((part - low) / step) if step else torch.zeros_like(part)
        code = code % 256 if last is None else code.clamp(max=last)
        code = (code + 128) % 256 - 128 if signed else code
        low, step = (low.half(), step.half()) if half else (low, step)
        back.append((low.double() if add_low else 0.0) + step.double() * code.double())
    if not last_chunk and len(back[-1]) < chunk:
        back[-1] = torch.zeros_like(back[-1])
    return torch.cat(back)


def _around_zero(part: Tensor) -> Tensor:
    step = part.abs().max() / 127
    return torch.round(part / step) * step if step else part


ONE = "when one low and one step serve all chunks"
SYMMETRIC = (
    "when the levels reach from minus the largest absolute value up to plus the largest absolute value"
)
MISTAKES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "when a number gets the level below it, and not the nearest": lambda *g: levels(*g, nearest=torch.floor),
    "when a number gets the level above it, and not the nearest": lambda *g: levels(*g, nearest=torch.ceil),
    ONE: lambda *g: levels(*g, one=True),
    f"{ONE}, and a number gets the level below it": lambda *g: levels(*g, one=True, nearest=torch.floor),
    "when the range is divided by 256: the largest number gets the code 256, which is 0 in 8 bits": (
        lambda *g: levels(*g, parts=256)
    ),
    "when the range is divided by 256, and the largest number gets the code 255": lambda *g: levels(
        *g, parts=256, last=255
    ),
    "when the step is the largest absolute value divided by 127, and the levels lie around zero": (
        lambda *g: levels(*g, around_zero=True)
    ),
    SYMMETRIC: lambda *g: levels(*g, symmetric=True),
    "when the codes are int8, which ends at 127: a larger code becomes negative": lambda *g: levels(
        *g, signed=True
    ),
    "when `chunk` is taken for the number of chunks": lambda *g: levels(*g, count=True),
    **{f"when 1e-{d} is added to each step": partial(levels, added=10.0**-d) for d in range(5, 11)},
    "when the low is not added again": lambda *g: levels(*g, add_low=False),
    "when zeros fill up the last chunk, and they change its low or its step": lambda *g: levels(
        *g, filled=True
    ),
    "when lows and steps are float16": lambda *g: levels(*g, half=True),
    "when the last chunk, which is shorter, is left out": lambda *g: levels(*g, last_chunk=False),
    "when the numbers are not quantised": lambda x, chunk: x.double(),
}


BELOW, ABOVE = (f"when a number gets the level {side} it, and not the nearest" for side in ("below", "above"))
CODE = "The code of a number says which level is nearest to it."
TASKS = {
    BELOW: CODE,
    ABOVE: CODE,
    ONE: "Each chunk has 256 levels of its own.",
    SYMMETRIC: LEVELS,
    "when the range is divided by 256, and the largest number gets the code 255": LEVELS,
    "when `chunk` is taken for the number of chunks": "`chunk` is a number of elements",
}


@check
def check_19_1(report: Report, quantise: Callable, dequantise: Callable) -> None:
    torch.manual_seed(report.seed())
    for case in CASES:
        with report.case(str(case)):
            _try(report, quantise, dequantise, case)
    with report.case("two tensors, one after the other"):
        pair = draw(Case(256, 64)), draw(Case(256, 64))
        made = [quantise(x, 64) for x in pair]
        for which, x, parts in zip(("first", "second"), pair, made, strict=True):
            back = dequantise(*parts, 64)
            report.close(f"the {which} comes back", back, levels(x, 64).float(), task=NEAREST)


def _try(report: Report, quantise: Callable, dequantise: Callable, case: Case) -> None:
    x = draw(case)
    before = x.clone()
    made = quantise(x, case.chunk)
    if not (isinstance(made, tuple | list) and len(made) == 3 and all(isinstance(t, Tensor) for t in made)):
        report.fail("`quantise` does not return three tensors", task="returns three tensors")
    back = dequantise(*made, case.chunk)
    if not isinstance(back, Tensor) or back.shape != x.shape:
        shape = tuple(back.shape) if isinstance(back, Tensor) else type(back).__name__
        report.fail(f"`dequantise` gives {shape}, and x has shape {tuple(x.shape)}", task=NEAREST)
    right = levels(before, case.chunk)
    report.close(
        "the numbers that come back",
        back.detach().double() / case.size,
        right / case.size,
        mistakes={text: _sized(program, case.size) for text, program in MISTAKES.items()},
        given=(before, case.chunk),
        tasks=TASKS,
        task=NEAREST
        if case.equal is None
        else "If all numbers of a chunk are equal, they come back as they are.",
    )
    report.true(
        _within(back, before, case.chunk),
        "no number is farther from x than half a step",
        "a number is farther from x than half a step",
        task="at most half the distance of two levels",
    )
    report.true(torch.equal(x, before), "x is as it was", "`x` has changed", task="`x` stays as it is.")
    chunks = -(-case.n // case.chunk)
    report.at_most(
        "bytes of codes, lows and steps",
        sum(t.nbytes for t in made),
        case.n + 8 * chunks,
        mistakes={
            "when lows and steps are float64": case.n + 16 * chunks,
            "when the codes take four bytes each": 4 * case.n + 8 * chunks,
            "when the codes take eight bytes each": 8 * case.n + 8 * chunks,
            "when each number has a low and a step of its own": 9 * case.n,
        },
        task="the three tensors together take n bytes for the codes and 8 bytes for each chunk",
    )


def _sized(program: Callable[[Tensor, int], Tensor], size: float) -> Callable[[Tensor, int], Tensor]:
    return lambda x, chunk: program(x, chunk) / size


def _within(back: Tensor, x: Tensor, chunk: int) -> bool:
    for got, part in zip(back.double().split(chunk), x.double().split(chunk), strict=True):
        if len(part):
            half = (part.max() - part.min()) / 255 / 2
            if ((got - part).abs() > half * 1.01 + 1e-6 * part.abs().max()).any():
                return False
    return True
