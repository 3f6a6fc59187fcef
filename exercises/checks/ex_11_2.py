"""11.2: an order with backwards in two parts; the lists of all ranks are made into a schedule, and simulated."""

from course_checks.pipeline_orders import CASES, Case, facts, observed

__all__ = ["CASES", "FACTS", "observe"]

FACTS = facts(
    pairs='The pair `("B", 0)` is the backward for the input of the stage, and `("W", 0)` is the backward for its '
    "weights.",
    fewer="there may be fewer microbatches than ranks.",
    work="Every rank does `F`, `B` and `W` of every microbatch, each once.",
    waits="`W` waits for its own rank's `B`, and nothing waits for `W`. No rank may wait for ever.",
    room="On every rank at most `ranks` microbatches have begun and not ended.",
    target="With at least as many microbatches as ranks, a step takes at most 3 × `microbatches` + `ranks` − 1 units.",
)


def observe(order_with_weights, case: Case) -> dict:
    p, m, _ = case
    units = max(3 * m + p - 1, 2 * m + 2 * p - 1)
    return observed(order_with_weights, case, dict(zip("FBW", "FBW", strict=True)), lambda _: p, units)
