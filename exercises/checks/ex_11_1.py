"""11.1: the 1F1B order of one rank; the lists of all ranks are made into a schedule, and simulated."""

from course_checks.pipeline_orders import CASES, Case, facts, observed

__all__ = ["CASES", "FACTS", "observe"]

FACTS = facts(
    pairs='The answer is a list of pairs: `("F", 0)` is the forward of microbatch 0, and `("B", 0)` its whole '
    "backward.",
    fewer="There may be fewer microbatches than ranks.",
    work="Every rank does the forward and the backward of every microbatch, each once.",
    waits="So the lists of the ranks must fit together: no rank may wait for ever.",
    room="On rank `rank`, at most `ranks - rank` microbatches have begun and not ended, at every moment.",
    target="Then a step takes at most 3 × (`microbatches` + `ranks` − 1) units.",
)


def observe(order_of_rank, case: Case) -> dict:
    p, m, _ = case
    return observed(order_of_rank, case, {"F": "F", "B": "BW"}, lambda rank: p - rank, 3 * (m + p - 1))
