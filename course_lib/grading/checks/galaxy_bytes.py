"""The check of exercise 13.4: bytes of the four ways, and from how many tokens on one sends fewer than another."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor

from course_lib.grading.report import Report, check
from simulator.inputs.shape import ModelShape
from simulator.predict.galaxy_traffic import galaxy_traffic

WAYS = ("tp", "sp", "galaxy", "galaxy2")
MOST_LINES = 2000


def right_bytes(way: str, tokens: int, hidden: int, columns: int, p: int, training: bool) -> int:
    """One layer between two others: three layers send so much more than two."""
    two, three = (
        galaxy_traffic(
            ModelShape(layers, hidden, p, 50, tokens, ffn=columns), way, p, 0, backward=training
        ).sent
        for layers in (2, 3)
    )
    return round(three - two)


def equal_tokens(way: str, hidden: int, columns: int, p: int) -> Fraction | None:
    """With so many tokens, not always a whole number, ``way`` sends as many bytes as TP; None if it never does.

    Bytes grow evenly with the tokens, so two numbers of tokens tell all.
    """
    fixed, slope = {}, {}
    for name in ("tp", way):
        few, many = (right_bytes(name, n * p, hidden, columns, p, True) for n in (1, 2))
        slope[name] = Fraction(many - few, p)
        fixed[name] = few - p * slope[name]
    if slope[way] >= slope["tp"]:
        return None
    return (fixed[way] - fixed["tp"]) / (slope["tp"] - slope[way])


def _sums(way: str, hidden: int, columns: int) -> tuple[int, int]:
    """(gradients of norms and biases behind a cut block, gradients of whole matrices with their biases), in numbers."""
    attention, mlp = 4 * (hidden**2 + hidden), 2 * hidden * columns + columns + hidden
    return {
        "tp": (0, 0),
        "sp": (4 * hidden, attention + mlp),
        "galaxy": (6 * hidden, 0),
        "galaxy2": (5 * hidden, mlp),
    }[way]


def _messages(way: str) -> int:
    """Of forward alone, each of (p - 1)/p of an activation."""
    return {"tp": 4, "sp": 2, "galaxy": 4, "galaxy2": 2}[way]


def _bytes(n: int, p: int) -> int:
    return round(Fraction(4 * n * (p - 1), p))


def _without_sums(way: str, tokens: int, hidden: int, columns: int, p: int, training: bool) -> int:
    return _bytes((1 + training) * _messages(way) * tokens * hidden, p)


def _without_small_sums(way: str, tokens: int, hidden: int, columns: int, p: int, training: bool) -> int:
    large = 2 * _sums(way, hidden, columns)[1] * training
    return _bytes((1 + training) * _messages(way) * tokens * hidden + large, p)


def _sums_once(way: str, tokens: int, hidden: int, columns: int, p: int, training: bool) -> int:
    sums = sum(_sums(way, hidden, columns)) * training
    return _bytes((1 + training) * _messages(way) * tokens * hidden + sums, p)


def _sums_in_inference(way: str, tokens: int, hidden: int, columns: int, p: int, training: bool) -> int:
    return _bytes((1 + training) * _messages(way) * tokens * hidden + 2 * sum(_sums(way, hidden, columns)), p)


def _whole_tensors(way: str, tokens: int, hidden: int, columns: int, p: int, training: bool) -> int:
    sums = 2 * sum(_sums(way, hidden, columns)) * training
    return 4 * ((1 + training) * _messages(way) * tokens * hidden + sums)


def _without_two_biases(way: str, tokens: int, hidden: int, columns: int, p: int, training: bool) -> int:
    """Galaxy has two biases behind a block that is cut, and Galaxy2 has one."""
    biases = {"galaxy": 2 * hidden, "galaxy2": hidden}.get(way, 0)
    sums = 2 * (sum(_sums(way, hidden, columns)) - biases) * training
    return _bytes((1 + training) * _messages(way) * tokens * hidden + sums, p)


def _second_bias_twice(way: str, tokens: int, hidden: int, columns: int, p: int, training: bool) -> int:
    """In Galaxy2 the MLP is not cut, so the bias of its second matrix belongs to the MLP, and to no connection."""
    sums = 2 * (sum(_sums(way, hidden, columns)) + hidden * (way == "galaxy2")) * training
    return _bytes((1 + training) * _messages(way) * tokens * hidden + sums, p)


def _keys_and_values_as_one(way: str, tokens: int, hidden: int, columns: int, p: int, training: bool) -> int:
    messages = _messages(way) - (way == "sp")
    sums = 2 * sum(_sums(way, hidden, columns)) * training
    return _bytes((1 + training) * messages * tokens * hidden + sums, p)


Count = Callable[[str, int, int], int]  # way, hidden, columns -> so many messages, or numbers, more or fewer


def _with(
    messages: Count | None = None, sums: Count | None = None, backward: Count | None = None
) -> Callable:
    """The right bytes, with other messages in forward and backward, other sums, or other messages in backward only."""

    def program(way: str, tokens: int, hidden: int, columns: int, p: int, training: bool) -> int:
        given = (way, hidden, columns)
        forward = _messages(way) + (messages(*given) if messages else 0)
        again = forward + (backward(*given) if backward else 0)
        added = sum(_sums(way, hidden, columns)) + (sums(*given) if sums else 0)
        return _bytes((forward + again * training) * tokens * hidden + 2 * added * training, p)

    return program


def _biases(way: str, h: int, c: int) -> int:
    """All biases whose gradients are added up."""
    return {"tp": 0, "sp": 5 * h + c, "galaxy": 2 * h, "galaxy2": 2 * h + c}[way]


def _matrices_of_the_mlp(way: str, h: int, c: int) -> int:
    return (2 * h * c + c + h) * (way in ("sp", "galaxy2"))


MISTAKES = {
    "when backward is counted with twice as many messages as forward": _with(
        backward=lambda w, h, c: _messages(w)
    ),
    "when TP's all-reduce is counted as (p - 1)/p of an activation, and not twice that": _with(
        lambda w, h, c: -2 * (w == "tp")
    ),
    "when SP gathers queries, too, and not keys and values only": _with(lambda w, h, c: w == "sp"),
    "when SP sends keys and values in forward, and nothing for them in backward": _with(
        backward=lambda w, h, c: -2 * (w == "sp")
    ),
    "when Galaxy2 gathers in front of its MLP, as Galaxy does": _with(lambda w, h, c: 2 * (w == "galaxy2")),
    "when the gradients of the MLP's matrices are not added up": _with(
        sums=lambda w, h, c: -_matrices_of_the_mlp(w, h, c)
    ),
    "when Galaxy2's MLP counts as cut by columns: its matrices are left out, and its second bias is not": _with(
        sums=lambda w, h, c: (h - _matrices_of_the_mlp(w, h, c)) * (w == "galaxy2")
    ),
    "when the gradients of all biases are forgotten": _with(sums=lambda w, h, c: -_biases(w, h, c)),
    "when the gradients of the norms are forgotten": _with(sums=lambda w, h, c: -4 * h * (w != "tp")),
    "when one norm is counted, or one vector of each norm": _with(sums=lambda w, h, c: -2 * h * (w != "tp")),
    "when the bias of the MLP's first matrix is forgotten": _with(
        sums=lambda w, h, c: -c * (w in ("sp", "galaxy2"))
    ),
    "when the bias of the MLP's first matrix is counted with `hidden` numbers, and not with `columns`": _with(
        sums=lambda w, h, c: (h - c) * (w in ("sp", "galaxy2"))
    ),
    "when the gradients that are added up over the ranks are forgotten": _without_sums,
    "when the gradients of norms and biases are forgotten": _without_small_sums,
    "when an all-reduce is counted as (p - 1)/p of the gradients, and not twice that": _sums_once,
    "when gradients are counted in inference, too": _sums_in_inference,
    "when the biases behind a block that is cut by heads or by columns are forgotten": _without_two_biases,
    "when Galaxy2 counts the bias of the MLP's second matrix twice: with the MLP and with connection 2": (
        _second_bias_twice
    ),
    "when keys and values are counted as one activation, and not as two": _keys_and_values_as_one,
    "when a message is counted as the whole tensor, and not (p - 1)/p of it": _whole_tensors,
}
EQUAL = {
    "sp": 3,
    "galaxy2": 4,
    "galaxy": 4,
}  # columns = hidden × this: some number of tokens sends equally much
ROUNDED_DOWN = "when the number of tokens is rounded down"
EQUAL_COUNTS = "when equally many bytes count as fewer"


@check
def check_13_4(
    report: Report, layer_bytes: Callable[..., float], fewest_tokens: Callable[..., int | None]
) -> None:
    rng = random.Random(report.seed())
    for training in (False, True):
        for way in WAYS:
            with report.case(f"{way}, {'training' if training else 'inference'}"):
                for p in (2, 3, 8):
                    hidden = p * rng.randrange(2, 40)
                    question = (way, p * rng.randrange(1, 60), hidden, p * rng.randrange(2, 90), p, training)
                    got, want = layer_bytes(*question), right_bytes(*question)
                    fact = f"bytes sent by each of {p} ranks"
                    report.close(
                        fact, got, float(want), mistakes=MISTAKES, given=question, task="every message"
                    )
    for way in ("sp", "galaxy2", "galaxy"):
        with report.case(f"{way}, fewest tokens"):
            for p in (3, 4, 2):
                hidden = p * rng.randrange(2, 40)
                columns = p * rng.randrange(2, 90) if p > 2 else EQUAL[way] * hidden
                got, equal = fewest_tokens(way, hidden, columns, p), equal_tokens(way, hidden, columns, p)
                want = None if equal is None else floor(equal) + 1
                mistakes = {} if equal is None else {ROUNDED_DOWN: floor(equal), EQUAL_COUNTS: ceil(equal)}
                fact = f"{p} ranks: from how many tokens on it sends fewer bytes than tp"
                report.equal(fact, got, want, mistakes=mistakes, task="the smallest whole number of tokens")
            report.at_most(
                "lines of Python run by `fewest_tokens`, for a hidden size of 30,000",
                lines_run(fewest_tokens, (way, 30_000, 120_000, 3)),
                MOST_LINES,
                task="it runs at most 2,000 lines of Python",
            )


class _Enough(BaseException):
    """So many lines have run that the target is missed. No `except Exception` of an answer catches it."""


def lines_run(answer: Callable[..., object], given: tuple) -> int:
    """Lines of Python that ``answer(*given)`` runs, counted up to one more than the target."""
    lines = 0

    def count(_frame: object, event: str, _argument: object) -> Callable:
        nonlocal lines
        lines += event == "line"
        if lines > MOST_LINES:
            raise _Enough
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        answer(*given)
    except _Enough:
        pass
    finally:
        sys.settrace(before)
    return lines
