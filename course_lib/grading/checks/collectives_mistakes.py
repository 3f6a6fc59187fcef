"""Likely mistakes of chapter 04, as programs: each gives what every rank would return, and what it would send.

They are played here, in one process: a message is a tensor that another list gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from simulator.inputs.chunks import chunk_sizes

Played = tuple[list[Tensor], list[tuple[tuple[int, ...], ...]]]


def _values(t: Tensor) -> tuple[int, ...]:
    return tuple(t.flatten().tolist())


FLOAT32 = "when the values pass through float32, which does not hold every large whole number"

# ---- 04.1 ring reduce-scatter -----------------------------------------------------------------------------


def ring_sums(
    inputs: Sequence[Tensor],
    first: int = 1,
    returned: int = 0,
    steps: int = -1,
    towards: int = -1,
    combine: Callable[[Tensor, Tensor], Tensor] = torch.add,
    divide: int = 1,
) -> Played:
    """A ring reduce-scatter with one thing changed: as it stands, it is right.

    Args:
        first: rank r sends chunk r + first in the first step.
        returned: rank r returns chunk r + returned.
        steps: as many; negative, as many fewer than there are ranks.
        towards: 1 sends to the right, -1 to the left.
        combine: what becomes of a chunk (first argument) and the part that comes for it.
        divide: what the sum is divided by.
    """
    p, rows = len(inputs), chunk_sizes(len(inputs[0]), len(inputs))
    chunks = [list(t.split(rows)) for t in inputs]
    sent: list[list[tuple[int, ...]]] = [[] for _ in inputs]
    for step in range(steps if steps >= 0 else p + steps):
        leaving = [chunks[r][(r + step + first) % p] for r in range(p)]
        for r in range(p):
            if leaving[r].numel():
                sent[r].append(_values(leaving[r]))
            place = (r + step + first + 1) % p
            chunks[r][place] = combine(chunks[r][place], leaving[(r - towards) % p])
    results = [chunks[r][(r + returned) % p] // divide for r in range(p)]
    return results, [tuple(messages) for messages in sent]


REDUCE_SCATTER: dict[str, Callable[[list[Tensor]], Played]] = {
    "when every rank sends its own chunk first, so that its own never gets the others' parts": (
        lambda inputs: ring_sums(inputs, first=0)
    ),
    "when rank r returns chunk r - 1 of the sum": lambda inputs: ring_sums(inputs, first=0, returned=-1),
    "when rank r returns chunk r + 1 of the sum": lambda inputs: ring_sums(inputs, first=2, returned=1),
    "when the part that comes takes the place of the rank's own part and is not added to it": (
        lambda inputs: ring_sums(inputs, combine=lambda _, part: part)
    ),
    "when the sum that is made in a step is not kept for the next": (
        lambda inputs: ring_sums(inputs, combine=lambda own, _: own)
    ),
    "when nothing is sent": lambda inputs: ring_sums(inputs, steps=0),
    "when the ring ends one step early": lambda inputs: ring_sums(inputs, steps=-2),
    "when the chunks go around to the right": lambda inputs: ring_sums(inputs, towards=1),
    "when the sum is divided by the number of ranks": lambda inputs: ring_sums(inputs, divide=len(inputs)),
    "when a rank adds its own part twice": lambda inputs: (
        [total + own for total, own in zip(ring_sums(inputs)[0], ring_sums(inputs, steps=0)[0], strict=True)],
        [],
    ),
}


def sums_in_float32(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Right but for its precision."""
    return [total.to(inputs[0].dtype) for total in ring_sums([t.float() for t in inputs])[0]]


# ---- 04.2 ring all-gather ---------------------------------------------------------------------------------


def _gathered(order: Callable[[int, int, int], int]) -> Callable[[list[Tensor]], list[Tensor]]:
    """Rank r puts the rows of rank ``order(r, place, p)`` in each place."""

    def program(inputs: list[Tensor]) -> list[Tensor]:
        p = len(inputs)
        return [torch.cat([inputs[order(r, k, p) % p] for k in range(p)]) for r in range(p)]

    return program


ALL_GATHER: dict[str, Callable[[list[Tensor]], list[Tensor]]] = {
    "when every rank puts its own rows first, and after them those of the ranks to its right": (
        _gathered(lambda r, place, _: r + place)
    ),
    "when the rows stand in the order in which they came": _gathered(lambda r, place, _: r - place),
    "when every rank puts its own rows last, and before them those of the ranks to its left": (
        _gathered(lambda r, place, _: r + 1 + place)
    ),
    "when the rows stand in the reverse order of the ranks": _gathered(lambda r, place, p: p - 1 - place),
    "when every rank sends its own rows in every step, and does not pass on what came": (
        _gathered(lambda r, place, _: place if place == r else r - 1)
    ),
    "when only the rank's own rows are returned": lambda inputs: list(inputs),
}


# ---- 04.3 tree broadcast ----------------------------------------------------------------------------------


def _from_rank_0(inputs: list[Tensor], src: int) -> list[Tensor]:
    return [inputs[0]] * len(inputs)


def _not_kept(inputs: list[Tensor], src: int) -> list[Tensor]:
    return list(inputs)


def _own_passed_on(inputs: list[Tensor], src: int) -> list[Tensor]:
    """Position k gets from position k without its highest bit; that one sends what it had before."""
    p = len(inputs)
    results = []
    for rank in range(p):
        position = (rank - src) % p
        parent = position - (1 << position.bit_length() - 1) if position else 0
        results.append(inputs[(src + parent) % p])
    return results


def _not_beyond_the_power_of_two(inputs: list[Tensor], src: int) -> list[Tensor]:
    """Only as many rounds as fit: the ranks past the largest power of two keep their own."""
    p = len(inputs)
    reached = 1 << p.bit_length() - 1
    return [inputs[src] if (rank - src) % p < reached else inputs[rank] for rank in range(p)]


def _only_the_first_round(inputs: list[Tensor], src: int) -> list[Tensor]:
    p = len(inputs)
    return [inputs[src] if (rank - src) % p < 2 else inputs[rank] for rank in range(p)]


BROADCAST: dict[str, Callable[[list[Tensor], int], list[Tensor]]] = {
    "when the tree grows from rank 0 and not from `src`": _from_rank_0,
    "when a rank returns its own tensor, and not the one that it received": _not_kept,
    "when a rank passes on its own tensor, and not the one that it received": _own_passed_on,
    "when the last round is left out, in which only some ranks send": _not_beyond_the_power_of_two,
    "when there is only one round": _only_the_first_round,
}


# ---- 04.5 the order of a ring's sends and receives --------------------------------------------------------

Programs = list[list[tuple[str, int]]]
RingSteps = Callable[[int, int], list[tuple[str, int]]]


def _steps(first: Callable[[int, int], bool]) -> Callable[[int], Programs]:
    """The ranks for which ``first(rank, ranks)`` holds send first, the others receive first."""

    def program(ranks: int) -> Programs:
        both = [[("send", (r + 1) % ranks), ("receive", (r - 1) % ranks)] for r in range(ranks)]
        return [steps if first(r, ranks) else steps[::-1] for r, steps in enumerate(both)]

    return program


def _to_the_left(ranks: int) -> Programs:
    both = [[("send", (r - 1) % ranks), ("receive", (r + 1) % ranks)] for r in range(ranks)]
    return [steps if r % 2 == 0 else steps[::-1] for r, steps in enumerate(both)]


def _past_the_end(ranks: int) -> Programs:
    both = [[("send", r + 1), ("receive", r - 1)] for r in range(ranks)]
    return [steps if r % 2 == 0 else steps[::-1] for r, steps in enumerate(both)]


ORDERS: dict[str, Callable[[int], Programs]] = {
    "when every rank sends first, so that no rank receives": _steps(lambda r, ranks: True),
    "when every rank receives first, so that no rank sends": _steps(lambda r, ranks: False),
    "when the last rank sends to a rank that is not there, as the ring is not closed": _past_the_end,
    "when the ranks send to the left": _to_the_left,
}
SLOW_ORDERS: dict[str, Callable[[int], Programs]] = {
    "when only rank 0 receives first: each rank waits for the next": _steps(lambda r, ranks: r > 0),
    "when only the last rank receives first: each rank waits for the next": _steps(
        lambda r, ranks: r < ranks - 1
    ),
    "when only rank 0 sends first: each rank waits for the one before": _steps(lambda r, ranks: r == 0),
    "when the lower half of the ranks sends first and the upper half receives first": _steps(
        lambda r, ranks: r < ranks // 2
    ),
    "when ranks 0 and 1 send first, ranks 2 and 3 receive first, and so on in pairs": _steps(
        lambda r, ranks: r // 2 % 2 == 0
    ),
    "when only every third rank receives first": _steps(lambda r, ranks: r % 3 != 0),
    "when only every third rank sends first": _steps(lambda r, ranks: r % 3 == 0),
}


def programs_of(ring_steps: RingSteps, ranks: int) -> Programs:
    """Each rank's steps, by the answer."""
    return [[(kind, int(peer)) for kind, peer in ring_steps(rank, ranks)] for rank in range(ranks)]


def orders_on_every_ring(ring_steps: RingSteps, sizes: Sequence[int]) -> dict[str, Callable[[int], Programs]]:
    """The mistakes that the answer makes on each ring that is tried: on a small ring several look the same."""
    try:
        taken = {ranks: programs_of(ring_steps, ranks) for ranks in sizes}
    except Exception:  # told in its case
        return {}
    return {
        text: of
        for text, of in (ORDERS | SLOW_ORDERS).items()
        if all(of(n) == steps for n, steps in taken.items())
    }
