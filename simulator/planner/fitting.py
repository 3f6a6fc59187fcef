"""Does a plan fit into a device's memory, how large a microbatch would, and which single change makes it fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simulator.inputs.checks import positive_or_infinite
from simulator.inputs.plan import Plan
from simulator.ledgers.memory import MemoryBreakdown

MOST_SEQUENCES = 4096  # a microbatch of more is not looked for

Ledger = Callable[
    [Plan], Sequence[MemoryBreakdown]
]  # what each rank holds under a plan; a ValueError: no plan


def fits(plan: Plan, ledger: Ledger, capacity: float, **changes: Any) -> bool:
    """Whether the plan fits once it is changed; a change that makes no plan does not."""
    positive_or_infinite(capacity=capacity)
    try:
        return max(rank.occupied for rank in ledger(replace(plan, **changes))) <= capacity
    except ValueError:
        return False


def largest_micro_batch(plan: Plan, ledger: Ledger, capacity: float) -> int:
    """The most sequences in a microbatch that fit, for a plan that fits as it is."""
    low, high = plan.micro_batch, 2 * plan.micro_batch
    while high <= MOST_SEQUENCES and fits(plan, ledger, capacity, micro_batch=high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(plan, ledger, capacity, micro_batch=middle) else (low, middle)
    return low


def changes_that_fit(
    plan: Plan, ledger: Ledger, capacity: float, *, activations: bool = True
) -> list[dict[str, Any]]:
    """Single changes after which the plan fits, the smallest of each kind. The first entry of each is the change.

    Args:
        activations: the ledger knows activations; otherwise only model states, on which less of a plan acts.
    """
    tries: list[list[dict[str, Any]]] = [
        [{"zero": stage} for stage in range(plan.zero + 1, 4)] if plan.dp * plan.cp > 1 else []
    ]
    if activations:
        tries.append([{"recompute": way} for way in ("selective", "full") if way != plan.recompute])
        tries.append([{"micro_batch": n} for n in _halves(plan.micro_batch)])
        tries += [
            [{axis: getattr(plan, axis) * 2**n, "shard": None} for n in range(1, 7)]
            for axis in ("tp", "pp", "cp")
        ]
    complete = ([_complete(plan, change) for change in changes] for changes in tries)
    first = (
        next((change for change in changes if fits(plan, ledger, capacity, **change)), None)
        for changes in complete
    )
    return [change for change in first if change is not None]


def _complete(plan: Plan, change: dict[str, Any]) -> dict[str, Any]:
    """A longer pipeline has other stages, and needs as many microbatches to be filled."""
    if "pp" not in change:
        return change
    return change | {"stage_layers": None, "microbatches": max(plan.microbatches, change["pp"])}


def _halves(number: int) -> list[int]:
    halves = []
    while number > 1:
        number //= 2
        halves.append(number)
    return halves
