"""The check of 11.3: layers that differ, cut into stages that fit into memory and of which the slowest is fast."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from operator import index
from typing import Any, NamedTuple

from course_lib.grading.report import Report, check

FITS = "A cut fits if no rank needs more than `capacity` bytes."
COUNTS = "a list of `ranks` whole numbers, each at least 1, that add up to the number of layers"
NONE = "Return `None` where no cut fits."


class Layer(NamedTuple):
    """One layer of a model: forward and backward of a microbatch in ms; bytes of its states; bytes it saves."""

    milliseconds: int
    states: int
    saved: int


class Case(NamedTuple):
    layers: list[Layer]
    ranks: int
    microbatches: int
    capacity: int


def cuts(layers: int, ranks: int) -> Iterator[list[int]]:
    """Every way to cut so many layers into so many runs of neighbours, as numbers of layers."""
    for edges in combinations(range(1, layers), ranks - 1):
        yield [b - a for a, b in pairwise((0, *edges, layers))]


def stages_of(case: Case, cut: Sequence[int]) -> list[list[Layer]]:
    """The layers of every stage."""
    starts = [sum(cut[:stage]) for stage in range(len(cut))]
    return [case.layers[start : start + count] for start, count in zip(starts, cut, strict=True)]


def alive(case: Case, rank: int) -> int:
    """The microbatches that 1F1B has on this rank at once."""
    return min(case.microbatches, case.ranks - rank)


def bytes_of(
    case: Case, cut: Sequence[int], at_once: Callable[[Case, int], int] = alive, *, states: int = 1
) -> list[int]:
    """What every rank needs; ``at_once``: how many microbatches it holds."""
    return [
        sum(states * layer.states + at_once(case, rank) * layer.saved for layer in stage)
        for rank, stage in enumerate(stages_of(case, cut))
    ]


def slowest(case: Case, cut: Sequence[int]) -> int:
    return max(sum(layer.milliseconds for layer in stage) for stage in stages_of(case, cut))


def fitting(case: Case, fits: Callable[[Case, list[int]], bool]) -> list[list[int]]:
    return [cut for cut in cuts(len(case.layers), case.ranks) if fits(case, cut)]


# ---- what answers may have taken for "fits", and for "best" --------------------------------------------------------

Fits = Callable[[Case, list[int]], bool]


def _within(case: Case, cut: list[int], at_once: Callable[[Case, int], int] = alive, states: int = 1) -> bool:
    return max(bytes_of(case, cut, at_once, states=states)) <= case.capacity


def _below(case: Case, cut: list[int]) -> bool:
    return max(bytes_of(case, cut)) < case.capacity


MEMORY: dict[str, Fits] = {
    "when the capacity is not looked at": lambda case, cut: True,
    "when a rank may not be exactly full": _below,
    "when every rank holds `ranks` microbatches at once": partial(_within, at_once=lambda c, r: c.ranks),
    "when every rank holds as many microbatches at once as the first one": partial(
        _within, at_once=lambda c, r: alive(c, 0)
    ),
    "when every rank holds all microbatches at once, as in GPipe": partial(
        _within, at_once=lambda c, r: c.microbatches
    ),
    "when rank r holds r + 1 microbatches at once: the ranks are counted from the wrong end": partial(
        _within, at_once=lambda c, r: min(c.microbatches, r + 1)
    ),
    "when rank r holds ranks - r microbatches at once, also where there are fewer": partial(
        _within, at_once=lambda c, r: c.ranks - r
    ),
    "when rank r holds ranks - r - 1 microbatches at once": partial(
        _within, at_once=lambda c, r: min(c.microbatches, c.ranks - r - 1)
    ),
    "when each rank holds one microbatch at once": partial(_within, at_once=lambda c, r: 1),
    "when the states are left out": partial(_within, states=0),
    "when the saved bytes are left out": partial(_within, at_once=lambda c, r: 0),
}


def _even(case: Case) -> list[int]:
    whole, rest = divmod(len(case.layers), case.ranks)
    return [whole + (rank < rest) for rank in range(case.ranks)]


def _even_late(case: Case) -> list[int]:
    whole, rest = divmod(len(case.layers), case.ranks)
    return [whole + (rank >= case.ranks - rest) for rank in range(case.ranks)]


@dataclass(frozen=True)
class Judged:
    """One answer, None where it says that nothing fits."""

    case: Case
    cut: list[int] | None

    def best_where(self, fits: Fits) -> bool:
        """Whether the answer is the best there is, were ``fits`` what decides."""
        possible = fitting(self.case, fits)
        if not possible or self.cut is None:
            return not possible and self.cut is None
        return self.cut in possible and slowest(self.case, self.cut) == min(
            slowest(self.case, cut) for cut in possible
        )

    def least_bytes(self) -> bool:
        """Whether the fullest rank holds as little as it can: memory is balanced, and not time."""
        least = min(max(bytes_of(self.case, cut)) for cut in cuts(len(self.case.layers), self.case.ranks))
        if self.cut is None:
            return least > self.case.capacity
        return max(bytes_of(self.case, self.cut)) == least

    def fastest_or_none(self) -> bool:
        """Whether the answer is the fastest of all cuts, and None where that one does not fit."""
        every = list(cuts(len(self.case.layers), self.case.ranks))
        least = min(slowest(self.case, cut) for cut in every)
        fastest = [cut for cut in every if slowest(self.case, cut) == least]
        if self.cut is None:
            return not all(_within(self.case, cut) for cut in fastest)
        return self.cut in fastest and _within(self.case, self.cut)

    def even(self) -> bool:
        return self.cut in (_even(self.case), _even_late(self.case))

    def most_equal(self) -> bool:
        """Whether the slowest and the fastest stage differ as little as in any cut that fits."""

        def spread(cut: list[int]) -> int:
            times = [sum(layer.milliseconds for layer in stage) for stage in stages_of(self.case, cut)]
            return max(times) - min(times)

        possible = fitting(self.case, _within)
        return self.cut in possible and spread(self.cut) == min(map(spread, possible))


SLIPS: dict[str, Callable[[Judged], bool]] = {
    **{text: partial(lambda fits, judged: judged.best_where(fits), fits) for text, fits in MEMORY.items()},
    "when only the fastest cut of all is tried, and another one would fit": Judged.fastest_or_none,
    "when every stage gets as many layers as any other": Judged.even,
    "when the fullest rank is made as empty as possible, and time is not looked at": Judged.least_bytes,
    "when the stages are made as equal as possible, and not the slowest one as fast as possible": (
        Judged.most_equal
    ),
}


# ---- the check ----------------------------------------------------------------------------------------------------


def _model(draw: random.Random, blocks: int) -> list[Layer]:
    """An embedding that is quick and large, blocks, and a head that is slow and large and saves much."""
    embedding = Layer(draw.randint(1, 3), draw.randint(300, 400), draw.randint(3, 6))
    body = [Layer(draw.randint(9, 15), draw.randint(90, 110), draw.randint(28, 36)) for _ in range(blocks)]
    head = Layer(draw.randint(20, 30), draw.randint(300, 400), draw.randint(60, 90))
    return [embedding, *body, head]


def _capacity(case: Case, share: float) -> int:
    """Bytes with which this share of all cuts fits, of which the fullest rank of one cut is exactly full."""
    needs = sorted({max(bytes_of(case, cut)) for cut in cuts(len(case.layers), case.ranks)})
    return needs[min(int(share * len(needs)), len(needs) - 1)]


# Blocks, ranks, microbatches, the share of the cuts that fit, and what the layers are drawn from. With a share below 0
# none fits: -0.15 gives 15 % of the bytes that the best cut needs. With a share above 1 all cuts fit, and there is room
# for more: layers taken as long as there is room leave nothing for the last stages.
# The layers are multiplied by a new number each time, so no answer can know them; which cuts are good stays the same,
# and with these layers the likely mistakes give different cuts.
CASES = [
    (6, 2, 8, 0.9, 28),
    (7, 3, 8, 0.3, 6),
    (8, 4, 8, 0.1, 1),
    (8, 4, 8, 0.0, 2),
    (8, 4, 2, 0.1, 3),
    (8, 4, 2, 0.02, 4),
    (3, 5, 8, 0.0, 5),
    (3, 5, 8, 4.0, 5),
    (4, 1, 8, 0.0, 6),
    (5, 3, 1, 0.2, 7),
    (6, 3, 8, -1, 8),
    (5, 2, 8, -0.15, 9),
]


def make_case(blocks: int, ranks: int, microbatches: int, share: float, drawn_from: int, times: int) -> Case:
    layers = [
        Layer(*(times * number for number in layer)) for layer in _model(random.Random(drawn_from), blocks)
    ]
    case = Case(layers, ranks, microbatches, 0)
    capacity = _capacity(case, max(share, 0))
    if share < 0:
        capacity = int(-share * capacity) - 1
    elif share > 1:
        capacity = int(share * capacity)
    return case._replace(capacity=capacity)


@check
def check_11_3(report: Report, cut_into_stages: Callable[..., Any]) -> None:
    judged: list[Judged] = []
    for blocks, ranks, microbatches, share, drawn_from in CASES:
        what = "nothing fits" if share < 0 else "hardly any cut fits" if share < 0.1 else "some cuts fit"
        what = "every cut fits" if share > 1 else what
        name = f"{blocks + 2} layers, {ranks} rank{'s' * (ranks > 1)}, "
        name += f"{microbatches} microbatch{'es' * (microbatches > 1)}, {what}"
        with report.case(name):
            times = random.Random(report.seed()).randint(2, 900)
            case = make_case(blocks, ranks, microbatches, share, drawn_from, times)
            got = cut_into_stages(list(case.layers), ranks, microbatches, case.capacity)
            _judge(report, judged, case, got)


def _judge(report: Report, judged: list[Judged], case: Case, got: Any) -> None:
    possible = fitting(case, _within)
    cut = None if got is None else _counts(report, case, got)
    judged.append(Judged(case, cut))

    def explains(slip: Callable[[Judged], bool]) -> list[int] | str | None:
        """Asked at the end, of all answers: one that the mistake does not explain rules it out."""
        return (cut or "none") if all(map(slip, judged)) else None

    mistakes = {text: partial(explains, slip) for text, slip in SLIPS.items()}
    said: dict[str, Any] = {"got": cut or "none", "mistakes": mistakes, "given": ()}
    if cut is None:
        example = f"such as {possible[0]}" if possible else ""
        report.true(
            not possible,
            "there is no cut that fits",
            f"got None, but {len(possible)} of the cuts fit{'s' * (len(possible) == 1)}, {example}",
            **said,
            task=NONE,
        )
        return
    need = bytes_of(case, cut)
    fullest = need.index(max(need))
    report.true(
        max(need) <= case.capacity,
        "every rank has room",
        f"{cut} needs {need[fullest]:,} bytes on rank {fullest}, and the capacity is {case.capacity:,}"
        + ("" if possible else "; no cut fits"),
        **said,
        task=FITS if possible else NONE,
    )
    times = sorted(slowest(case, other) for other in possible)
    slower = sum(time < slowest(case, cut) for time in times)
    report.at_most(
        "cuts that fit and have a faster slowest stage",
        slower,
        0,
        mistakes={
            text: partial(lambda s, n: n if explains(s) else None, slip, slower)
            for text, slip in SLIPS.items()
        },
        given=(),
        task="its slowest stage is as fast as that of any cut that fits",
    )


def _counts(report: Report, case: Case, got: Any) -> list[int]:
    try:
        cut = [index(count) for count in got]
    except TypeError:
        report.fail(f"got {got!r}", task=COUNTS)
    if len(cut) == case.ranks and min(cut) < 1:
        report.fail(f"got {cut}: stage {cut.index(min(cut))} has no layer", task=COUNTS)
    if len(cut) != case.ranks or sum(cut) != len(case.layers):
        report.fail(f"got {cut} for {len(case.layers)} layers on {case.ranks} ranks", task=COUNTS)
    return cut
