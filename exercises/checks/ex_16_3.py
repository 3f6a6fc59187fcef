"""16.3: admit requests under a budget of blocks without ever running out."""

import random

from course_lib.grading.judge import Fact, record
from course_lib.observe.show.admission import serve_by
from simulator.predict.serving import Arrival, blocks_for

FACTS = {
    "whole": Fact("the number", "Return how many of `waiting` are admitted now, a whole number."),
    "progress": Fact("the rule", "Each request fits into the cache alone, so when nothing is running and…"),
    "problem": Fact("blocks", "At no step may the requests in the cache need more than `blocks` blocks…"),
    "steps": Fact("steps more than the fewest", "At each step as many are admitted as…", most=0, beyond=True),
}

Case = record("name arrivals blocks size")


def cases(seed: int) -> list[Case]:
    late = [Arrival(8, 1), Arrival(4, 1), Arrival(8, 1)]
    mixed = [Arrival(12, 8), Arrival(14, 5), *[Arrival(2, 2)] * 4]
    return [
        Case("one request that fills the cache", [Arrival(3, 6)], 2, 4),
        Case("two requests that fit together exactly", [Arrival(4, 5), Arrival(4, 5)], 4, 4),
        Case("two requests that would run out later", [Arrival(4, 5), Arrival(4, 5)], 3, 4),
        Case("two requests begin a block at their last step", [Arrival(4, 2), Arrival(4, 2)], 3, 4),
        Case("the first ends before the second grows", [Arrival(7, 2), Arrival(3, 7, 1)], 4, 4),
        Case("a block becomes free only after the last step", late, 3, 4),
        Case("many short requests in blocks of 16", [Arrival(1, 2) for _ in range(12)], 8, 16),
        Case("a long request is first, short ones wait", mixed, 6, 4),
        Case("nobody waits for a while", [Arrival(3, 2), Arrival(3, 2, 9)], 2, 4),
        Case("blocks of 1", drawn(0, 8, 12, 1, 10), 12, 1),
        Case("20 requests", drawn(seed, 20, 14, 4, 40), 14, 4),
    ]


def drawn(seed: int, count: int, blocks: int, size: int, longest: int) -> list[Arrival]:
    draw, found = random.Random(seed), []
    while len(found) < count:
        arrival = Arrival(draw.randint(1, longest // 2), draw.randint(1, longest // 2), 2 * len(found))
        if blocks_for(arrival.cached, size) <= blocks:
            found.append(arrival)
    return found


def observe(admit, case: Case) -> dict:
    served = serve_by(admit, *case[1:-1])
    kinds = {"the rule returns": "whole", "none is": "progress"}
    key = next((kind for said, kind in kinds.items() if said in served.problem), "problem")
    return {key: served.problem, "steps": len(served.history.steps), "trace": served.admitted}
