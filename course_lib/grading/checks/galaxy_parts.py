"""The check of exercise 13.1: all-gather and reduce-scatter of unequal parts, forward and backward, on real ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks.sequence_parallel_ranks import ON_CPU, Crossing, crossed
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from simulator.inputs.chunks import chunk_sizes

# ---- what runs on the ranks -----------------------------------------------------------------------------------


def lengths_of(case: Crossing) -> list[int]:
    """The tokens of each rank."""
    return [part.shape[1] for part in (case.inputs if case.gathers else case.upstream)]


def crossed_parts(
    gather: Callable[..., Tensor], add_up: Callable[..., Tensor], cases: Sequence[Crossing]
) -> list[dict[str, Any]]:
    """What each call gave on this rank."""
    return [
        crossed(*(partial(_called, answer, lengths_of(case)) for answer in (gather, add_up)), [case])[0]
        for case in cases
    ]


def _called(answer: Callable[..., Tensor], lengths: list[int], x: Tensor, group: Any) -> Tensor:
    return answer(x, list(lengths), group)


# ---- what is right, and what goes wrong -----------------------------------------------------------------------


def gathered(parts: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    """All tokens, on every rank."""
    return [torch.cat(list(parts), 1)] * len(parts)


def added_up(wholes: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    """The sum over the ranks, cut by the ranks' lengths."""
    return list(sum(wholes).split(list(lengths), 1))


def _as_they_come(parts: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    p = len(parts)
    return [torch.cat([parts[(rank - step) % p] for step in range(p)], 1) for rank in range(p)]


def _own_and_zeros(parts: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    zeros = [torch.zeros_like(part) for part in parts]
    return [torch.cat([*zeros[:rank], part, *zeros[rank + 1 :]], 1) for rank, part in enumerate(parts)]


def _own_tokens(wholes: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    return [whole.split(list(lengths), 1)[rank] for rank, whole in enumerate(wholes)]


def _divided(wholes: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    return [part / len(wholes) for part in added_up(wholes, lengths)]


def _cut_evenly(wholes: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    return added_up(wholes, chunk_sizes(sum(lengths), len(lengths)))


def _of_the_neighbour(wholes: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    parts = added_up(wholes, lengths)
    return [*parts[1:], parts[0]]


def _twice(wholes: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    pairs = zip(added_up(wholes, lengths), _own_tokens(wholes, lengths), strict=True)
    return [total + own for total, own in pairs]


GATHERED = {
    "when the parts stand in the order in which the ring brings them, and not in the order of the ranks": _as_they_come,
    "when a rank has its own tokens, and zeros in place of the others": _own_and_zeros,
}
ADDED_UP = {
    "when each rank takes its tokens of its own tensor, and nothing is added up": _own_tokens,
    "when the sum is divided by the number of ranks": _divided,
    "when the sum is cut evenly, and not by `lengths`": _cut_evenly,
    "when each rank gets the tokens of the rank on its right": _of_the_neighbour,
    "when each rank adds its own addend twice": _twice,
}

# ---- the check --------------------------------------------------------------------------------------------------

# world -> case -> lengths. A rank may have no token; all may have equally many.
LENGTHS = {
    2: {"2 ranks, 5 + 3 tokens": [5, 3], "2 ranks, 0 + 4 tokens": [0, 4], "2 ranks, 3 + 3 tokens": [3, 3]},
    3: {"3 ranks, 2 + 3 + 7 tokens": [2, 3, 7], "3 ranks, 1 + 0 + 4 tokens": [1, 0, 4]},
    4: {"4 ranks in groups of 2, 5 + 1 tokens": [5, 1], "4 ranks, a group of one rank": [6]},
}


@check
def check_13_1(
    report: Report, gather_parts: Callable[..., Tensor], sum_to_parts: Callable[..., Tensor]
) -> None:
    for world, layouts in LENGTHS.items():
        cases = {
            (where, gathers): _drawn(report, gathers, lengths, where)
            for where, lengths in layouts.items()
            for gathers in (True, False)
        }
        with report.case(f"{world} ranks"):
            answers = (gather_parts, sum_to_parts, list(cases.values()))
            found = launch(crossed_parts, world, args=answers, **ON_CPU)
            for number, ((where, gathers), case) in enumerate(cases.items()):
                name = "gather_parts" if gathers else "sum_to_parts"
                with report.case(f"{where}, {name}"):
                    _check(report, case, [rank[number] for rank in found])


def _drawn(report: Report, gathers: bool, lengths: Sequence[int], where: str) -> Crossing:
    generator = torch.Generator().manual_seed(report.seed())
    dtype = torch.bfloat16 if "3 + 3" in where else torch.float64

    def draw(sizes: Sequence[int]) -> list[Tensor]:  # small whole numbers, which bf16 has exactly
        return [torch.randint(-9, 10, (2, size, 5), generator=generator).to(dtype) for size in sizes]

    parts, wholes = draw(lengths), draw([sum(lengths)] * len(lengths))
    strided = len(lengths) == 3
    return Crossing(gathers, parts if gathers else wholes, wholes if gathers else parts, strided)


def _check(report: Report, case: Crossing, found: list[dict[str, Any]]) -> None:
    lengths = lengths_of(case)
    copies = len(found) // len(lengths)
    there, back = (gathered, added_up) if case.gathers else (added_up, gathered)
    likely = (GATHERED, ADDED_UP) if case.gathers else (ADDED_UP, GATHERED)
    report.on_every_rank(
        "forward",
        [rank["out"] for rank in found],
        copies * there(case.inputs, lengths),
        mistakes=_programs(likely[0], case.inputs, lengths, copies),
        task="gets the tokens of all ranks, in the order of the ranks"
        if case.gathers
        else "gets its own tokens of the sum",
    )
    if any(rank["changed"] for rank in found):
        report.fail("`x` has been changed in place", task="`x` is left as it is")
    report.on_every_rank(
        "backward",
        [rank["gradient"] for rank in found],
        copies * back(case.upstream, lengths),
        mistakes=_programs(likely[1], case.upstream, lengths, copies),
        task="In backward each of them does with the gradient what the other does in forward",
        thing="gradient of `x`",
    )
    token = case.inputs[0].shape[0] * case.inputs[0].shape[2] * case.inputs[0].element_size()
    p, whole = len(lengths), sum(lengths)
    in_rings, direct, whole_tensors, padded = [], [], [], []
    for rank, own in enumerate(lengths):
        to_neighbour = min(lengths[rank - 1], lengths[(rank + 1) % p])  # whichever way the ring turns
        in_rings.append(token * (whole - to_neighbour + whole - own) if p > 1 else 0)
        direct.append(token * ((p - 1) * own + whole - own) if p > 1 else 0)
        to_the_right = whole - lengths[(rank + 1) % p]
        whole_tensors.append(token * (to_the_right + (p - 1) * whole) if p > 1 else 0)
        padded.append(token * 2 * (p - 1) * max(lengths) if p > 1 else 0)
    more = [one["sent"] - in_rings[rank % p] for rank, one in enumerate(found)]
    likely = {
        "when each rank sends its part to every other rank itself": direct,
        "when the ring of the sum passes on whole tensors, and not one part in each round": whole_tensors,
        "when every part is padded to the length of the longest one": padded,
    }
    beyond = {
        name: round(max(0, *(sent - ring for sent, ring in zip(bytes_of, in_rings, strict=True)))) or None
        for name, bytes_of in likely.items()
    }
    report.at_most(
        "bytes that a rank sends beyond those of a ring",
        round(max(0, *more)),
        0,
        mistakes=beyond,
        task="no rank sends more than in two rings",
    )


def _programs(
    programs: dict[str, Callable[..., list[Tensor]]],
    values: Sequence[Tensor],
    lengths: Sequence[int],
    copies: int,
) -> dict[str, Callable[[], list[Tensor]]]:
    return {
        sentence: (lambda program=program: copies * program(values, lengths))
        for sentence, program in programs.items()
    }
