"""The check of 16.2: attention over a block table, against float64 attention over the gathered sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.grading.checks.recomputation_counted import Alive
from course_lib.grading.report import Report, check

Attend = Callable[[Tensor, Tensor, Tensor, list[int], int], Tensor]


class Case(NamedTuple):
    name: str
    length: int
    block_size: int
    heads: int = 4
    kv_heads: int = 4
    unused: str = "numbers"  # what stands in slots that are not the sequence's: numbers, or NaN
    scale: float = 1.0  # of the keys
    dtype: torch.dtype = torch.float32


CASES = (
    Case("11 tokens, blocks of 4", 11, 4),
    Case("one token", 1, 4),
    Case("exactly full: 12 tokens, blocks of 4", 12, 4),
    Case("blocks of 1", 5, 1),
    Case("one block of 16", 7, 16),
    Case("6 heads share 2 heads of keys and values", 11, 4, 6, 2),
    Case("one head of keys and values for all", 9, 4, 4, 1),
    Case("large scores", 23, 4, scale=300.0),
    Case("unused slots hold NaN", 11, 4, unused="NaN"),
    Case("numbers of 16 bits", 61, 8, 16, 2, scale=5.0, dtype=torch.bfloat16),
)
SIZE = 16
TOLERANCE = {
    torch.float32: 1e-4,
    torch.bfloat16: 5e-3,
}  # of 16 bits the last rounding alone takes up to 3.9e-3
TASKS = {
    "large scores": "Scores may be large, several hundreds.",
    "unused slots hold NaN": "Slots that the sequence does not use may hold anything, NaN too.",
    "numbers of 16 bits": "With numbers of 16 bits, compute in 32 bits.",
}


class Inputs(NamedTuple):
    q: Tensor
    keys: Tensor
    values: Tensor
    table: list[int]
    length: int


def _inputs(case: Case, seed: int) -> Inputs:
    draw = torch.Generator().manual_seed(seed)
    needed = -(-case.length // case.block_size)
    table = torch.randperm(needed + 4, generator=draw)[:needed].tolist()
    if needed > 1 and table == sorted(table):
        table.reverse()
    shape = (needed + 4, case.block_size, case.kv_heads, SIZE)
    keys, values = torch.randn(2, *shape, generator=draw)
    keys *= case.scale
    if case.unused == "NaN":
        used = torch.zeros(shape[:2], dtype=torch.bool)
        for i in range(case.length):
            used[table[i // case.block_size], i % case.block_size] = True
        keys[~used], values[~used] = torch.nan, torch.nan
    q = torch.randn(case.heads, SIZE, generator=draw)
    return Inputs(q.to(case.dtype), keys.to(case.dtype), values.to(case.dtype), table, case.length)


def _gathered(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Keys and values of the sequence in float64: ``(kv_heads, length, size)``."""
    blocks = torch.tensor(inputs.table)
    k, v = (
        x[blocks].flatten(0, 1)[: inputs.length].double().transpose(0, 1)
        for x in (inputs.keys, inputs.values)
    )
    return k, v


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    return F.scaled_dot_product_attention(q.double()[:, None], k, v, scale=scale, enable_gqa=True)[:, 0]


def _right(*given: Any) -> Tensor:
    inputs = Inputs(*given)
    return _attention(inputs.q, *_gathered(inputs))


@check
def check_16_2(report: Report, attend_blocks: Attend) -> None:
    for case in CASES:
        with report.case(case.name):
            inputs = _inputs(case, report.seed())
            own = [x.clone() for x in inputs[:3]]
            got = attend_blocks(*own, list(inputs.table), inputs.length)
            _shaped(report, got, inputs.q)
            if not all(
                a.allclose(b, rtol=0, atol=0, equal_nan=True) for a, b in zip(own, inputs, strict=False)
            ):
                report.fail(
                    "q, keys or values have changed", task="`q`, `keys` and `values` stay as they are."
                )
            report.close(
                "the result",
                got.detach().double(),
                _right(*inputs),
                tolerance=TOLERANCE[case.dtype],
                mistakes=MISTAKES,
                given=tuple(inputs),
                task=None if report.failures else TASKS.get(case.name),
            )
            report.true(
                got.dtype == case.dtype,
                "the dtype of q",
                f"the result is {got.dtype}, q is {case.dtype}",
                task="The result has the shape and the dtype of `q`.",
            )
            report.ok("q, keys and values are as they were")
    _memory(report, attend_blocks)


def _shaped(report: Report, got: Any, q: Tensor) -> None:
    task = "The result has the shape and the dtype of `q`."
    if not isinstance(got, Tensor):
        report.fail(f"the result is {type(got).__name__}, not a tensor", task=task)
    if got.shape != q.shape:
        report.fail(f"the result has the shape {tuple(got.shape)}, expected {tuple(q.shape)}", task=task)


def _memory(report: Report, attend_blocks: Attend) -> None:
    """The target: as many bytes for 1,600 tokens as for 160."""
    for length in (160, 1600):
        case = Case(f"{length:,} tokens, blocks of 16", length, 16, 8, 2)
        with report.case(case.name):
            inputs = _inputs(case, 0)
            with Alive(*inputs[:3]) as alive:
                attend_blocks(*inputs)
            block = 16 * 8 * SIZE * 4  # bytes of the keys of one block, repeated for each of the 8 heads
            report.at_most(
                "bytes alive at once",
                alive.most,
                6 * block,
                task="However long the sequence is, at most 6 · `heads` · `block_size` · `size` numbers of 4 bytes are alive at once.",  # noqa: E501
            )


# ---- likely mistakes ---------------------------------------------------------------------------------------------


def _parts(inputs: Inputs) -> list[tuple[Tensor, Tensor]]:
    """Scores ``(heads, n)`` and repeated values ``(heads, n, size)`` of each block, in float64."""
    k, v = (x.repeat_interleave(len(inputs.q) // len(x), dim=0) for x in _gathered(inputs))
    scores = (k @ inputs.q.double()[..., None])[..., 0] / SIZE**0.5
    size = inputs.keys.shape[1]
    return list(zip(scores.split(size, dim=1), v.split(size, dim=1), strict=True))


def _outputs(inputs: Inputs) -> list[Tensor]:
    return [(scores.softmax(-1)[:, None] @ v)[:, 0] for scores, v in _parts(inputs)]


def _without_common_maximum(*given: Any) -> Tensor:
    weights = [((s - s.amax(-1, keepdim=True)).exp(), v) for s, v in _parts(Inputs(*given))]
    total = sum((w[:, None] @ v)[:, 0] for w, v in weights)
    return total / sum(w.sum(-1, keepdim=True) for w, _ in weights)


def _in_order_of_memory(*given: Any) -> Tensor:
    inputs = Inputs(*given)
    return _right(*inputs[:3], list(range(len(inputs.table))), inputs.length)


def _unused_slots_too(*given: Any) -> Tensor:
    inputs = Inputs(*given)
    if inputs.keys.isnan().any():
        raise ValueError
    return _right(*inputs[:4], len(inputs.table) * inputs.keys.shape[1])


def _full_blocks_only(*given: Any) -> Tensor:
    inputs = Inputs(*given)
    full = inputs.length // inputs.keys.shape[1]
    return _right(*inputs[:3], inputs.table[:full], full * inputs.keys.shape[1])


def _full_block_is_empty(*given: Any) -> Tensor:
    inputs = Inputs(*given)
    rest = inputs.length % inputs.keys.shape[1]
    return (
        _right(*inputs)
        if rest
        else _right(*inputs[:3], inputs.table[:-1], inputs.length - inputs.keys.shape[1])
    )


def _without_the_last(*given: Any) -> Tensor:
    inputs = Inputs(*given)
    return _right(*inputs[:4], max(1, inputs.length - 1))


def _sorted_table(*given: Any) -> Tensor:
    inputs = Inputs(*given)
    return _right(*inputs[:3], sorted(inputs.table), inputs.length)


def _not_divided(*given: Any) -> Tensor:
    scores, v = (torch.cat(parts, dim=1) for parts in zip(*_parts(Inputs(*given)), strict=True))
    return ((scores - scores.amax(-1, keepdim=True)).exp()[:, None] @ v)[:, 0]


def _scaled_by(scale: Callable[[Tensor], float]) -> Callable[..., Tensor]:
    def program(*given: Any) -> Tensor:
        inputs = Inputs(*given)
        return _attention(inputs.q, *_gathered(inputs), scale=scale(inputs.q))

    return program


def _dealt_heads(*given: Any) -> Tensor:
    inputs = Inputs(*given)
    k, v = (x.repeat(len(inputs.q) // len(x), 1, 1) for x in _gathered(inputs))
    return _attention(inputs.q, k, v)


MISTAKES: dict[str, Callable[..., Tensor]] = {
    "when the blocks' outputs are averaged": lambda *given: sum(_outputs(Inputs(*given))) / len(given[3]),
    "when the blocks' outputs are added up": lambda *given: sum(_outputs(Inputs(*given))),
    "when only the last block counts": lambda *given: _outputs(Inputs(*given))[-1],
    "when sums of different blocks are added without bringing them to one maximum": _without_common_maximum,
    "when blocks are taken in the order of memory, and not by the table": _in_order_of_memory,
    "when slots behind the end of the sequence count, too": _unused_slots_too,
    "when the last block counts only if it is full": _full_blocks_only,
    "when the last token is left out": _without_the_last,
    "when the last block counts as empty if it is full": _full_block_is_empty,
    "when the table is sorted first": _sorted_table,
    "when the sum of the weighted values is not divided by the sum of the weights": _not_divided,
    "when scores are not divided by the root of the head's size": _scaled_by(lambda q: 1.0),
    "when scores are divided by the root of all heads' sizes together": _scaled_by(
        lambda q: q.numel() ** -0.5
    ),
    "when scores are divided by the size, and not by its root": _scaled_by(lambda q: 1 / q.shape[-1]),
    "when query head h uses the head h % kv_heads of keys and values": _dealt_heads,
}
