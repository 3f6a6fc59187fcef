"""19.3: averaging with two neighbours in a ring, its matrix, and how fast the ranks agree."""

import torch
import torch.distributed as dist
from course_checks.gradient_compression import mean_of, pair, random_matrix
from course_checks.on_ranks import count

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime.kept import launch

MEAN = "Its new tensor is the mean of its own and theirs."
FACTS = {
    "matrix": Fact("each weight", MEAN, tolerance=1e-5),
    "kept": Fact("x", "`x` stays as it is."),
    "mixed": Fact("after one mixing, the tensor", MEAN, tolerance=1e-5, each="rank"),
    "again": Fact("when it is called again, the tensor", MEAN, tolerance=1e-5, each="rank"),
    "mixings": Fact("the number of mixings", "`mixings(matrix, factor)` returns the smallest whole…"),
    "sent": Fact("bytes sent by a rank beyond twice those of x", "A rank sends at most twice the…", most=0),
}

Matrix, Mix = record("name ranks"), record("name ranks shape")
Mixings = record("name matrix factor", task=None)


def cases(seed: int) -> list[Matrix | Mix | Mixings]:
    shapes = [(5, (6,)), (3, (2, 4)), (2, (3,)), (1, (4,)), (4, (1,)), (3, (0,))]
    two, apart, all_with_all = pair(0.2), torch.block_diag(pair(0.5), pair(0.5)), mean_of(3, (0, 1, 2))
    none = "This is 0 if `factor` is 1 or larger, whatever ρ is."
    asked = [
        ("a ring of 8 ranks", mean_of(8), 0.01),
        ("a ring of 32 ranks", mean_of(32), 0.5),
        ("2 ranks that almost change places", two, 0.05),
        ("a ring of 4 ranks without their own tensor", mean_of(4, (-1, 1)), 0.1),
        ("two pairs that never meet", apart, 0.1),
        ("2 ranks that hardly mix, ρ is 0.9999995", pair(0.99999975), 0.1),
        ("2 ranks that are almost equal at once, ρ is 0.0000005", pair(0.50000025), 1e-9),
        ("all ranks average with all", all_with_all, 0.001),
        ("1 rank", torch.ones(1, 1, dtype=torch.float64), 0.5),
        ("a random matrix of 6 ranks", random_matrix(6, seed), 0.03),
        ("nothing is asked", mean_of(6), 1.0, none),
        ("two pairs that never meet, nothing is asked", apart, 1.0, none),
        ("all ranks average with all, nothing is asked", all_with_all, 1.0, none),
    ]
    return [
        *[Matrix(f"the matrix of {count(ranks)}", ranks) for ranks in (4, 5, 3, 2, 1)],
        *[Mix(f"{count(ranks)} mix tensors of shape {shape}", ranks, shape, seed) for ranks, shape in shapes],
        *[Mixings(f"mixings, {name}", *given) for name, *given in asked],
    ]


def on_rank(mix, shape: tuple[int, ...], seed: int) -> dict:
    draw, rank = torch.Generator().manual_seed(seed), dist.get_rank()
    x = torch.randn(dist.get_world_size(), *shape, generator=draw)[rank].clone()
    own = x.clone()
    with record_traffic() as log:
        mixed = mix(own)
    found = {"mixed": mixed.detach().clone(), "kept": torch.equal(own, x)}
    return found | {"again": mix(x), "sent": round(log.traffic.sent) - 2 * x.nbytes}


def observe(answer, case: Matrix | Mix | Mixings) -> dict:
    ring_matrix, mix, mixings = answer
    if isinstance(case, Matrix):
        return {"matrix": torch.as_tensor(ring_matrix(case.ranks), dtype=torch.float64)}
    if isinstance(case, Mixings):
        return {"mixings": mixings(case.matrix.clone(), case.factor)}
    ranks = launch(on_rank, case.ranks, args=(mix, case.shape, case.seed), backend="gloo", timeout=20.0)
    return {
        "kept": "" if all(one["kept"] for one in ranks) else "`x` has other values than before",
        "mixed": [one["mixed"] for one in ranks],
        "again": [one["again"] for one in ranks],
        "sent": max(0, *[one["sent"] for one in ranks]),
    }
