"""How many microbatches a pipeline rank keeps alive at once: a closed form for 1F1B and interleaved 1F1B."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from simulator.inputs.checks import amounts, index
from simulator.inputs.plan import Plan
from simulator.pipeline.schedules import interleaved_rounds


def in_flight(plan: Plan, rank: int, weights: Sequence[float] | None = None) -> list[int]:
    """Microbatches of each chunk of a pipeline rank that are alive when the most is, under 1F1B or interleaved 1F1B.

    A rank runs forwards for a warm-up, then one more before each backward. Plain 1F1B: p - rank. With v chunks
    the warm-up is (v-1) p + 2 (p-1-rank) forwards; a rank takes a round of p microbatches through a chunk, then
    through the next, and backwards in the opposite order.

    Args:
        weights: what a microbatch in each chunk counts: its layers, where they differ.
    """
    index(plan.pp, rank=rank)
    if weights is not None:
        amounts(plan.chunks, weights=weights)
    p, m, v = plan.pp, plan.microbatches, plan.chunks
    if plan.schedule == "1f1b":
        return [min(m, p - rank)]
    first = -(-m // max(1, m // p))  # microbatches in the first and longest round
    warm_up = min(m * v, (v - 1) * first + 2 * (p - 1 - rank))
    begun = min(m * v, warm_up + 1)  # forwards when the first backward starts
    weights = weights or [1] * v
    if m % first == 0 and len(set(weights)) == 1:  # every backward makes room for the next forward
        whole, rest = divmod(begun, first * v)
        return [whole * first + min(max(rest - chunk * first, 0), first) for chunk in range(v)]
    rounds = interleaved_rounds(p, m)
    if m % first == 0:
        rounds = rounds[:4]  # the warm-up ends in the third at the latest; one round later all repeats
    forwards = [chunk for round_ in rounds for chunk in range(v) for _ in round_]
    backwards = [v - 1 - chunk for chunk in forwards]
    alive = [forwards[:begun].count(chunk) for chunk in range(v)]
    most, total = list(alive), sum(map(mul, alive, weights))
    highest = total
    for done, arrives in zip(backwards, forwards[begun:], strict=False):
        alive[done] -= 1
        alive[arrives] += 1
        total += weights[arrives] - weights[done]
        if total > highest:
            most, highest = list(alive), total
    return most
