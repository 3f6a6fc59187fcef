"""11.3: layers that differ, cut into stages that fit into memory and of which the slowest is fast."""

import random
from itertools import combinations, pairwise
from operator import index
from typing import NamedTuple

from course_checks.on_ranks import count

from course_lib.grading.judge import Fact, record

FACTS = {
    "counts": Fact("the answer", "It returns how many layers each stage gets: a list of `ranks` whole…"),
    "none": Fact("the answer", "Return `None` where no cut fits."),
    "fits": Fact("memory", "A cut fits if no rank needs more than `capacity` bytes."),
    "slowest": Fact(
        "milliseconds by which another cut that fits is faster", "its slowest stage…", most=0, beyond=True
    ),
}


class Layer(NamedTuple):
    milliseconds: int
    states: int
    saved: int


# fit: how many cuts do; example: of a cut that fits
class Case(record("layers ranks microbatches", capacity=0, fit="", example=None)):
    @property
    def name(self) -> str:
        sizes = f"{len(self.layers)} layers, {count(self.ranks)}"
        return f"{sizes}, {count(self.microbatches, 'microbatch', 'es')}, {self.fit}"


# Blocks, ranks, microbatches, the share of the cuts that fit, and what the layers are drawn from. With a share below 0
# none fits: -0.15 gives 15 % of the bytes that the best cut needs. With a share above 1 all cuts fit, and there is room
# for more: layers taken as long as there is room leave nothing for the last stages. The layers are multiplied by a new
# number each time, so no answer can know them; which cuts are good stays the same.
DRAWN = [
    (6, 2, 8, 0.9, 28), (7, 3, 8, 0.3, 6), (8, 4, 8, 0.1, 1), (8, 4, 8, 0.0, 2), (8, 4, 2, 0.1, 3), (8, 4, 2, 0.02, 4),
    (3, 5, 8, 0.0, 5), (3, 5, 8, 4.0, 5), (4, 1, 8, 0.0, 6), (5, 3, 1, 0.2, 7), (6, 3, 8, -1, 8), (5, 2, 8, -0.15, 9),
]  # fmt: skip


def cases(seed: int) -> list[Case]:
    times = random.Random(seed)
    return [drawn(*each, times.randint(2, 900)) for each in DRAWN]


def drawn(blocks: int, ranks: int, microbatches: int, share: float, drawn_from: int, times: int) -> Case:
    """An embedding that is quick and large, blocks, and a head that is slow and large and saves much."""
    draw = random.Random(drawn_from)
    ranges = [((1, 3), (300, 400), (3, 6)), *[((9, 15), (90, 110), (28, 36))] * blocks]
    ranges.append(((20, 30), (300, 400), (60, 90)))
    layers = [Layer(*(times * draw.randint(*between) for between in of_layer)) for of_layer in ranges]
    case = Case(layers, ranks, microbatches)
    edges = combinations(range(1, len(layers)), ranks - 1)
    cuts = [[b - a for a, b in pairwise((0, *inner, len(layers)))] for inner in edges]
    needs = sorted({max(bytes_of(case, cut)) for cut in cuts})
    capacity = needs[min(int(max(share, 0) * len(needs)), len(needs) - 1)]  # one cut fills its fullest rank
    capacity = int(-share * capacity) - 1 if share < 0 else int(max(share, 1) * capacity)
    example = next((cut for cut in cuts if max(bytes_of(case, cut)) <= capacity), None)
    fit = "nothing fits" if share < 0 else "hardly any cut fits" if share < 0.1 else "some cuts fit"
    return case._replace(capacity=capacity, example=example, fit="every cut fits" if share > 1 else fit)


def stages_of(case: Case, cut: list[int]) -> list[list[Layer]]:
    rest = iter(case.layers)
    return [[next(rest) for _ in range(layers)] for layers in cut]


def bytes_of(case: Case, cut: list[int]) -> list[int]:
    alive = [min(case.microbatches, case.ranks - rank) for rank in range(case.ranks)]
    return [sum(x.states + n * x.saved for x in s) for n, s in zip(alive, stages_of(case, cut), strict=True)]


def observe(cut_into_stages, case: Case) -> dict:
    got = cut_into_stages(list(case.layers), *case[1:4])
    if got is None:
        return {"none": f"got None, and {case.example} fits" if case.example else "", "slowest": 0}
    try:
        cut = list(map(index, got))
    except TypeError:
        return {"counts": f"the answer is {got!r}"}
    if len(cut) != case.ranks or sum(cut) != len(case.layers) or min(cut) < 1:
        stage = f": stage {cut.index(min(cut))} has no layer" if 0 in cut else ""
        return {"counts": f"the answer is {cut} for {len(case.layers)} layers on {case.ranks} ranks{stage}"}
    need = bytes_of(case, cut)
    said = f"{cut} needs {max(need):,} bytes on rank {need.index(max(need))}, and the capacity is {case.capacity:,}"
    slowest = max(sum(layer.milliseconds for layer in stage) for stage in stages_of(case, cut))
    found = {"none": said} if not case.example else {"fits": said} if max(need) > case.capacity else {}
    return found | {"slowest": slowest, "trace": cut}
