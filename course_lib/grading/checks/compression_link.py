"""The check of 19.5: how long five ways to average take on a link, and which one is the fastest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from course_lib.grading.alive import Alive
from course_lib.grading.report import Report, check

METHODS = ("full", "8 bits", "top-k", "low rank", "local")
FASTEST = "If several are equally fast, take the one that stands first in the table."


class Case(NamedTuple):
    rows: int
    columns: int
    ranks: int
    latency: float
    bandwidth: float
    k: int
    r: int
    every: int
    compress: dict[str, float]

    @property
    def n(self) -> int:
        return self.rows * self.columns


QUICK = {"full": 0.0, "8 bits": 1e-3, "top-k": 4e-3, "low rank": 2e-3, "local": 0.0}
NONE_FREE = QUICK | {"full": 2e-5, "local": 3e-4}
FREE = dict.fromkeys(METHODS, 0.0)
CASES: dict[str, Case] = {
    "4 ranks, a fast link": Case(1000, 1000, 4, 1e-6, 100e9, 10_000, 4, 1, QUICK),
    "4 ranks, a slow link": Case(1000, 1000, 4, 1e-4, 12.5e6, 1000, 4, 10, NONE_FREE),
    "8 ranks, a slow link, few numbers kept": Case(600, 800, 8, 1e-5, 1e6, 50, 8, 20, NONE_FREE),
    "16 ranks far apart": Case(100, 200, 16, 0.05, 1e8, 200, 2, 50, NONE_FREE),
    "3 ranks, a link of middling speed": Case(900, 500, 3, 2e-5, 3e8, 45_000, 90, 1, QUICK),
    "2 ranks, compression takes no time": Case(64, 32, 2, 1e-3, 1e6, 100, 1, 2, FREE),
    "64 ranks, compression takes no time": Case(500, 400, 64, 0.0, 1e7, 2000, 1, 4, FREE),
    "1 rank": Case(10, 20, 1, 1e-3, 1e6, 5, 1, 4, QUICK),
    "1 rank, compression takes no time": Case(10, 20, 1, 1e-3, 1e6, 5, 1, 4, FREE),
}


def seconds(
    name: str,
    case: Case,
    *,
    itemsize: float = 4,
    halves: int = 2,
    rounds: int = 2,
    scales: float = 8,
    pair: int = 8,
    ring: bool = False,
    low: str = "both",
    low_rounds: int = 2,
    compress: bool = True,
    every: str = "all",
    share: Callable[[int], float] = lambda p: (p - 1) / p,
    turns: int = 1,
    whole: Callable[[float], float] = float,
) -> float:
    """One method on one link; the settings make single mistakes of it."""
    n, p, r = case.n, case.ranks, case.r

    def all_reduce(numbers: float, size: float = itemsize) -> float:
        chunk = whole(numbers / p) * p
        return halves * share(p) * size * chunk / case.bandwidth + rounds * (p - 1) * case.latency

    if name == "full":
        time = all_reduce(n)
    elif name == "8 bits":
        time = all_reduce(n, 1) + 2 * (p - 1) * scales / case.bandwidth
    elif name == "top-k":
        time = turns * (p - 1) * (case.latency + pair * case.k / case.bandwidth)
        if ring:
            time = all_reduce(2 * case.k)
    elif name == "low rank":
        parts = {"both": (case.rows, case.columns), "rows": (case.rows,), "columns": (case.columns,)}[low]
        time = sum(all_reduce(r * part) for part in parts)
        time -= (len(parts) - low_rounds) * 2 * (p - 1) * case.latency if len(parts) > low_rounds else 0
    else:
        time = all_reduce(n) / (case.every if every == "all" else 1)
        if every == "all, compression too":
            return (all_reduce(n) + case.compress[name]) / case.every
        if every == "bytes":
            latencies = rounds * (p - 1) * case.latency
            time = (all_reduce(n) - latencies) / case.every + latencies
    return time + (case.compress[name] if compress else 0)


def _when(**settings: object) -> Callable[[str, Case], float]:
    return lambda name, case: seconds(name, case, **settings)


def _one_latency(name: str, case: Case) -> float:
    """Each all-reduce with one latency, on a single rank, too."""
    count = {"low rank": 2, "local": 1 / case.every}.get(name, 1)
    return seconds(name, case, rounds=0) + count * case.latency


SWAPPED = "when latency and bandwidth change places"
HALF = {
    "when only one half of the all-reduce is counted": _when(halves=1, rounds=1),
    "when the latencies of one half only are counted": _when(rounds=1),
    "when latencies are left out": _when(rounds=0),
    "when a rank sends the chunks of all ranks, its own chunk, too": _when(share=lambda p: 1),
    "when each message carries all numbers, and not one chunk of n / p": _when(share=lambda p: p - 1),
    "when n / p is rounded down": _when(whole=math.floor),
    "when n / p is rounded up": _when(whole=math.ceil),
    "when one latency is counted for all messages of an all-reduce": lambda name, case: _one_latency(
        name, case
    ),
    SWAPPED: lambda name, case: seconds(name, case._replace(latency=case.bandwidth, bandwidth=case.latency)),
}
SIZE = {"when numbers are counted, and not bytes": _when(itemsize=1)}
COMPRESS = {"when the seconds of the compression are left out": _when(compress=False)}
MISTAKES: dict[str, dict[str, Callable[[str, Case], float]]] = {
    "full": HALF | SIZE | COMPRESS,
    "8 bits": HALF
    | COMPRESS
    | {
        "when the low and the step of the chunks are left out": _when(scales=0),
        "when one low and one step are counted for all chunks": lambda name, case: seconds(
            name, case, scales=8 / case.ranks
        ),
        "when the low and the step are counted once, and not in each message": lambda name, case: (
            seconds(name, case, scales=0) + 8 / case.bandwidth
        ),
    },
    "top-k": COMPRESS
    | {
        "when the places of the k numbers are left out": _when(pair=4),
        "when a place takes eight bytes": _when(pair=12),
        "when the k numbers go around the ring twice": _when(turns=2),
        "when the k numbers are all-reduced, although each rank has other places": _when(ring=True),
    },
    "low rank": HALF
    | SIZE
    | COMPRESS
    | {
        "when only the matrix of rows × r is sent": _when(low="rows"),
        "when only the matrix of columns × r is sent": _when(low="columns"),
        "when both matrices travel in one all-reduce": _when(low_rounds=1),
    },
    "local": HALF
    | SIZE
    | COMPRESS
    | {
        "when the seconds of the compression are divided by the steps between two averages, too": _when(
            every="all, compression too"
        ),
        "when the time is not divided by the steps between two averages": _when(every="never"),
        "when the latencies are paid in every step": _when(every="bytes"),
    },
}

TASKS = {
    SWAPPED: "`link` is the pair (latency, bandwidth)",
    "when n / p is rounded down": "n / p may be a fraction",
    "when n / p is rounded up": "n / p may be a fraction",
    "when one latency is counted for all messages of an all-reduce": "(their number) · latency",
    "when the low and the step are counted once, and not in each message": "Each chunk has two more float32 numbers",
}


@check
def check_19_5(report: Report, choose: Callable[..., tuple[str, dict[str, float]]]) -> None:
    for name, case in CASES.items():
        with report.case(name):
            answer = choose(*_given(case))
            if not (isinstance(answer, tuple | list) and len(answer) == 2 and isinstance(answer[1], dict)):
                report.fail("the answer is not a pair of a name and a dict", task="Return a pair")
            best, got = answer
            report.equal("the methods", sorted(map(str, got)), sorted(METHODS), task="from each name to")
            for method in METHODS:
                report.close(
                    f"microseconds of {method!r}",
                    1e6 * got[method],
                    1e6 * seconds(method, case),
                    tolerance=1e-6,
                    mistakes={text: _in_microseconds(program) for text, program in MISTAKES[method].items()},
                    given=(method, case),
                    task="mean seconds for a step",
                    tasks=TASKS,
                )
            report.equal(
                "the fastest",
                best,
                fastest(case),
                mistakes={
                    "when the last of several is taken": _last(case),
                    "when the slowest is taken": max(METHODS, key=lambda m: seconds(m, case)),
                    "when the fastest is chosen by the messages alone, without the compression": min(
                        METHODS, key=lambda m: seconds(m, case, compress=False)
                    ),
                    "when the first in the alphabet is taken of several": min(
                        METHODS, key=lambda m: (seconds(m, case), m)
                    ),
                },
                given=(),
                task=FASTEST,
            )
    with report.case("1,000 rows and 1,000 columns"):
        with Alive() as alive:
            choose(*_given(CASES["4 ranks, a fast link"]))
        report.at_most(
            "bytes of tensors made",
            alive.most,
            0,
            task="computed from the sizes alone: it makes 0 bytes of tensors",
        )


def _in_microseconds(program: Callable[[str, Case], float]) -> Callable[[str, Case], float]:
    return lambda name, case: 1e6 * program(name, case)


def _given(case: Case) -> tuple:
    link = (case.latency, case.bandwidth)
    return case.rows, case.columns, case.ranks, link, case.k, case.r, case.every, dict(case.compress)


def fastest(case: Case) -> str:
    return min(METHODS, key=lambda method: seconds(method, case))


def _last(case: Case) -> str:
    return min(reversed(METHODS), key=lambda method: seconds(method, case))
