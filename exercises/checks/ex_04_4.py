"""04.4: where ring and tree take equally long, from times alone."""

import random

from course_lib.grading.judge import Fact, record
from simulator.inputs.hardware import Link
from simulator.predict.collective_time import all_reduce_seconds

FACTS = {
    "number": Fact("the result", "Return the size in bytes at which both take equally long, as any kind of…"),
    "size": Fact("the size at which both take equally long", "Return the size in bytes…", tolerance=1e-3),
    "calls": Fact("measurements", "at most 4 measurements, that is calls of `time_of`.", most=4),
}

Case = record("name ranks link")


def cases(seed: int) -> list[Case]:
    draw, found = random.Random(seed), []
    for ranks in (4, 8, 64, 5, 3, 2):  # a latency that is left in a slope shows with 64, whatever is drawn
        latency, rate = (20e-6, 50e9) if ranks == 64 else (4e-6, 1e9)
        link = Link(draw.uniform(latency, 50e-6), draw.uniform(rate, 100e9))
        found.append(Case(f"{ranks} ranks", ranks, link))
    return found


def observe(crossover, case: Case) -> dict:
    calls = []

    def time_of(algorithm: str, size: float) -> float:
        calls.append((algorithm, float(size)))
        return all_reduce_seconds(algorithm, float(size), case.ranks, case.link)

    got = crossover(time_of)
    try:
        got = float(got)
    except (TypeError, ValueError):
        return {"number": f"the result is {got!r:.80}, not a number of bytes"}
    if abs(got) <= 1e-3 * case.link.latency * case.link.rate:  # bytes that are as good as none
        got = 0.0
    return {"size": got, "calls": len(calls)}
