"""The check of 19.3: averaging with two neighbours in a ring, its matrix, and how fast the ranks agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.grading.checks.ddp_ranks import generator_of, on_ranks
from course_lib.grading.report import Report, check
from course_lib.observe.ledgers.traffic import record_traffic

MEAN = "the mean of its own tensor and of the tensors of its neighbours"
COUNT = "the smallest whole number k for which"
NONE_NEEDED = "This is 0 if `factor` is 1 or larger"


def weighted(
    ranks: int, own: float = 1 / 3, left: float = 1 / 3, right: float = 1 / 3, closed: bool = True
) -> Tensor:
    """Row r: the weights with which rank r takes the tensors of all ranks; those of one rank are added up."""
    matrix = torch.zeros(ranks, ranks, dtype=torch.float64)
    for r in range(ranks):
        for s, weight in ((r, own), (r - 1, left), (r + 1, right)):
            if closed or 0 <= s < ranks:
                matrix[r, s % ranks] += weight
    return matrix


def ring(ranks: int, closed: bool = True) -> Tensor:
    """Each rank takes the mean of itself and its neighbours, of which it has one in a ring of 2 ranks."""
    matrix = (weighted(ranks, closed=closed) > 0).double()
    return matrix / matrix.sum(1, keepdim=True)


def _always_a_third(ranks: int) -> Tensor:
    return (weighted(ranks) > 0).double() / 3


MATRICES: dict[str, Callable[[int], Tensor]] = {
    "when a neighbour counts twice where both neighbours are the same rank": weighted,
    "when each weight is a third, also where there are fewer than three ranks": _always_a_third,
    "when the first and the last rank are not neighbours, and each weight is a third": partial(
        weighted, closed=False
    ),
    "when the first and the last rank are not neighbours": partial(ring, closed=False),
    "when a rank keeps half of its own, and takes a quarter of each neighbour": lambda p: weighted(
        p, 1 / 2, 1 / 4, 1 / 4
    ),
    "when a rank takes half of each neighbour, and nothing of its own": lambda p: weighted(
        p, 0, 1 / 2, 1 / 2
    ),
    "when a rank averages with the rank before it only": lambda p: weighted(p, 1 / 2, 1 / 2, 0),
    "when a rank averages with the rank after it only": lambda p: weighted(p, 1 / 2, 0, 1 / 2),
    "when a rank averages with all ranks": lambda p: torch.full((p, p), 1 / p, dtype=torch.float64),
    "when the sum is not divided by the number of tensors": lambda p: (ring(p) > 0).double(),
}


def tensors(ranks: int, shape: Sequence[int], seed: int) -> list[Tensor]:
    generator = generator_of(seed)
    return [torch.randn(*shape, generator=generator) for _ in range(ranks)]


def mixed(matrix: Callable[[int], Tensor], parts: Sequence[Tensor]) -> list[Tensor]:
    stacked = torch.stack(list(parts)).double()
    return list(torch.tensordot(matrix(len(parts)), stacked, dims=1))


def _one_after_the_other(parts: Sequence[Tensor]) -> list[Tensor]:
    """Rank 0 mixes first, and later ranks see its new tensor."""
    now = torch.stack([part.double() for part in parts])
    for r, weights in enumerate(ring(len(parts))):
        now[r] = torch.tensordot(weights, now, dims=1)
    return list(now)


MIXED: dict[str, Callable[[Sequence[Tensor]], list[Tensor]]] = {
    f"{text} (in `mix`)": partial(mixed, matrix) for text, matrix in MATRICES.items()
} | {"when ranks mix one after the other, with what their neighbours have by then": _one_after_the_other}


def run(mix: Callable[[Tensor], Tensor], shape: Sequence[int], seed: int) -> dict[str, Any]:
    parts = tensors(dist.get_world_size(), shape, seed)
    own = parts[dist.get_rank()].clone()
    with record_traffic() as log:
        got = mix(own)
    kept = torch.equal(own, parts[dist.get_rank()])
    again = mix(parts[dist.get_rank()].clone())
    return {
        "got": got,
        "again": again,
        "kept": kept,
        "sent": round(log.traffic.sent),
        "own object": got is not own,
    }


def needed(matrix: Tensor, factor: float, second: Callable[[Tensor], float] | None = None) -> float:
    """Mixings until the disagreement is at most ``factor`` of what it was."""
    rho = (second or _second)(torch.linalg.eigvalsh(matrix.double()))
    if factor >= 1:
        return 0
    if rho > 1 - 1e-6:
        return math.inf
    return max(1, math.ceil(math.log(factor) / math.log(rho))) if rho >= 1e-6 else 1


def _second(values: Tensor) -> float:
    return values.abs().sort().values[-2].item() if len(values) > 1 else 0.0


def _signed(values: Tensor) -> float:
    return max(0.0, values.sort().values[-2].item()) if len(values) > 1 else 0.0


def _not_rounded(matrix: Tensor, factor: float, *, above: float = 1e-6, below: float = 1e-6) -> float:
    """Where a rho near 1 or near 0 is taken as it is; ``above`` and ``below`` say how near still counts as equal."""
    rho = _second(torch.linalg.eigvalsh(matrix.double()))
    if 1 - 1e-6 < rho < 1 - above and factor < 1:
        return math.ceil(math.log(factor) / math.log(rho))
    if below <= rho < 1e-6 and factor < 1:
        return math.ceil(math.log(factor) / math.log(rho))
    return needed(matrix, factor)


def _other(matrix: Tensor, factor: float, count: Callable[[float, float], int]) -> float:
    """Another number of mixings, where there is a logarithm to take."""
    rho = _second(torch.linalg.eigvalsh(matrix.double()))
    usual = 1e-6 < rho < 1 - 1e-6 and factor < 1
    return count(math.log(factor), rho) if usual else needed(matrix, factor)


def _rho_first(matrix: Tensor, factor: float) -> float:
    rho = _second(torch.linalg.eigvalsh(matrix.double()))
    return needed(matrix, factor if 1e-6 <= rho <= 1 - 1e-6 else min(factor, 0.5))


COUNTS: dict[str, Callable[[Tensor, float], float]] = {
    "when the second largest eigenvalue is taken with its sign, and not by its absolute value": partial(
        needed, second=_signed
    ),
    "when the largest absolute value is taken, which is always 1": partial(
        needed, second=lambda v: v.abs().max().item() if len(v) > 1 else 0.0
    ),
    "when a ρ that is nearly 1 is not taken for 1": partial(_not_rounded, above=1e-12),
    "when a ρ that is nearly 0 is not taken for 0": partial(_not_rounded, below=1e-12),
    "when a ρ that is nearly 1 or nearly 0 is taken as it is": partial(
        _not_rounded, above=1e-12, below=1e-12
    ),
    "when the smallest absolute value is taken": lambda m, f: needed(m, f, lambda v: v.abs().min().item()),
    "when the number is rounded down": partial(
        _other, count=lambda log, rho: math.floor(log / math.log(rho))
    ),
    "when 1 − ρ is taken for the logarithm of ρ": partial(
        _other, count=lambda log, rho: math.ceil(-log / (1 - rho))
    ),
    "when ρ² is taken for ρ": lambda m, f: needed(m, f, lambda v: _second(v) ** 2),
    "when the largest absolute value is taken, which is always 1, for a single rank, too": partial(
        needed, second=lambda v: v.abs().max().item()
    ),
    "when the second smallest absolute value is taken": partial(
        needed, second=lambda v: v.abs().sort().values[1].item() if len(v) > 1 else 0.0
    ),
    "when the eigenvalues are ordered with their sign, and only then made absolute": partial(
        needed, second=lambda v: v.sort().values[-2].abs().item() if len(v) > 1 else 0.0
    ),
    "when at least one mixing is counted, although none is needed": lambda m, f: max(1, needed(m, f)),
    "when a ρ of 1 or 0 decides, although `factor` is 1": _rho_first,
}


def _random_matrix(ranks: int) -> Tensor:
    """A mean of permutations and of what undoes them: symmetric, each row and each column adds up to 1."""
    total = torch.zeros(ranks, ranks, dtype=torch.float64)
    for weight in torch.rand(3, dtype=torch.float64).softmax(0):
        swap = torch.eye(ranks, dtype=torch.float64)[torch.randperm(ranks)]
        total += weight * (swap + swap.T) / 2
    return 0.9 * total + 0.1 / ranks  # connected


def matrices() -> dict[str, tuple[Tensor, float]]:
    two = torch.tensor([[0.2, 0.8], [0.8, 0.2]], dtype=torch.float64)
    hardly, almost = (
        torch.tensor([[a, 1 - a], [1 - a, a]], dtype=torch.float64) for a in (0.99999975, 0.50000025)
    )
    apart = torch.block_diag(*[torch.full((2, 2), 0.5, dtype=torch.float64)] * 2)
    return {
        "a ring of 8 ranks": (ring(8), 0.01),
        "a ring of 5 ranks": (ring(5), 0.2),
        "a ring of 32 ranks": (ring(32), 0.5),
        "2 ranks that almost change places": (two, 0.05),
        "a ring of 4 ranks without their own tensor": (weighted(4, 0, 1 / 2, 1 / 2), 0.1),
        "two pairs that never meet": (apart, 0.1),
        "2 ranks that hardly mix, ρ is 0.9999995": (hardly, 0.1),
        "2 ranks that are almost equal at once, ρ is 0.0000005": (almost, 1e-9),
        "all ranks average with all": (ring(3), 0.001),
        "nothing is asked": (ring(6), 1.0),
        "two pairs that never meet, nothing is asked": (apart, 1.0),
        "all ranks average with all, nothing is asked": (ring(3), 1.0),
        "1 rank": (ring(1), 0.5),
        "a random matrix of 6 ranks": (_random_matrix(6), 0.03),
    }


@check
def check_19_3(report: Report, ring_matrix: Callable, mix: Callable, mixings: Callable) -> None:
    torch.manual_seed(report.seed())
    for ranks in (4, 5, 3, 2, 1):
        noun = "1 rank" if ranks == 1 else f"{ranks} ranks"
        with report.case(f"the matrix of {noun}"):
            report.close(
                "each weight",
                torch.as_tensor(ring_matrix(ranks), dtype=torch.float64),
                ring(ranks),
                mistakes=MATRICES,
                given=(ranks,),
                task=MEAN,
            )
    for ranks, shape in ((5, (6,)), (3, (2, 4)), (2, (3,)), (1, (4,)), (4, (1,)), (3, (0,))):
        noun = "1 rank" if ranks == 1 else f"{ranks} ranks"
        with report.case(f"{noun} mix tensors of shape {shape}"):
            _try_mix(report, mix, ranks, shape)
    for name, (matrix, factor) in matrices().items():
        with report.case(f"mixings, {name}"):
            report.equal(
                f"to reach {factor:g}",
                mixings(matrix.clone(), factor),
                needed(matrix, factor),
                mistakes=COUNTS,
                given=(matrix, factor),
                task=COUNT if factor < 1 else NONE_NEEDED,
            )


def _try_mix(report: Report, mix: Callable, ranks: int, shape: tuple[int, ...]) -> None:
    seed = report.seed()
    parts = tensors(ranks, shape, seed)
    results = on_ranks(run, ranks, (mix, shape, seed), 20)
    report.true(
        all(result["kept"] for result in results),
        "x is as it was",
        "`x` has other values than before",
        task="`x` stays as it is.",
    )
    for when, key in (("after one mixing", "got"), ("when it is called again", "again")):
        report.on_every_rank(
            when,
            [result[key] for result in results],
            mixed(ring, parts),
            mistakes=MIXED,
            given=(parts,),
            task=MEAN,
        )
    size = 4 * math.prod(shape)
    whole = 2 * (ranks - 1) / ranks * size
    report.at_most(
        "bytes sent by a rank",
        max(result["sent"] for result in results),
        2 * size,
        mistakes={
            "when each rank sends its tensor to all others": (ranks - 1) * size,
            "when all tensors are added up, and the sum is not what is needed": round(whole),
        },
        task="A rank sends at most twice the bytes of `x`.",
    )
