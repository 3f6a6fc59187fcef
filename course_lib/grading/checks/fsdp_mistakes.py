"""Likely mistakes of chapter 07, as programs: what each would give in the case at hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# ---- 07.2 what to gather when ---------------------------------------------------------------------------------

Event = tuple[str, int]


def events(
    units: int,
    ahead: int,
    look: int | None = None,
    upwards: bool = False,
    front_first: bool = False,
    keep: Callable[[str, int], bool] | None = None,
) -> list[Event]:
    """A step's events with one thing changed: as it stands, it is right.

    Args:
        look: units gathered ahead, where it is another number than ``ahead``.
        upwards: backward gathers the units above ahead, and not those below.
        front_first: backward begins with the first unit.
        keep: whether a unit stays after a computation.
    """
    look = ahead if look is None else look
    back = range(units) if front_first else reversed(range(units))
    computed = [("forward", u) for u in range(units)] + [("backward", u) for u in back]
    keep = keep or (lambda phase, u: phase == "forward" and u >= units - ahead - 1)
    result: list[Event] = []
    whole: set[int] = set()
    for place, (phase, unit) in enumerate(computed):
        wanted = [u for _, u in computed[place : place + look + 1]]
        if upwards and phase == "backward":
            wanted = list(range(unit, min(unit + look + 1, units)))
        for u in wanted:
            if u not in whole:
                result.append(("gather", u))
                whole.add(u)
        result.append((phase, unit))
        if not keep(phase, unit):
            result.append(("free", unit))
            whole.discard(unit)
    return result


def _phase_by_phase(units: int, ahead: int) -> list[Event]:
    """Forward and backward planned apart: the turn between them is not looked over."""
    result: list[Event] = []
    for phase, order in (("forward", list(range(units))), ("backward", list(reversed(range(units))))):
        whole: set[int] = set()
        for place, unit in enumerate(order):
            for u in order[place : place + ahead + 1]:
                if u not in whole:
                    result.append(("gather", u))
                    whole.add(u)
            result += [(phase, unit), ("free", unit)]
            whole.discard(unit)
    return result


GATHERED_LATE = (
    "when the gathers ahead come after the computation beside which they should run, and not before it"
)
PLANNED_APART = "when forward and backward are planned apart, so that nothing is gathered ahead at the turn"
EVENTS: dict[str, Callable[[int, int], list[Event]]] = {
    "when backward begins with the first unit": lambda n, k: events(n, k, front_first=True),
    "when each unit is gathered only when it is needed": lambda n, k: events(n, k, look=0),
    "when backward gathers the units above, and not those below": lambda n, k: events(n, k, upwards=True),
    PLANNED_APART: _phase_by_phase,
    "when one unit fewer is gathered ahead": lambda n, k: events(n, k, look=max(k - 1, 0)),
    "when no unit is freed in backward": lambda n, k: events(
        n, k, keep=lambda phase, u: phase == "backward" or u >= n - k - 1
    ),
    "when no unit is ever freed": lambda n, k: events(n, k, keep=lambda *_: True),
}
WASTEFUL: dict[str, Callable[[int, int], list[Event]]] = {
    "when every unit is freed after its forward, those too that backward needs first": (
        lambda n, k: events(n, k, keep=lambda *_: False)
    ),
    "when no unit is freed between forward and backward": (
        lambda n, k: events(n, k, keep=lambda phase, _: phase == "forward")
    ),
    "when a unit is kept after its forward only if its backward is one of the next `ahead` computations": (
        lambda n, k: events(n, k, keep=lambda phase, u: phase == "forward" and 2 * (n - 1 - u) < k)
    ),
    "when only the last unit is kept at the turn": (
        lambda n, k: events(n, k, keep=lambda phase, u: phase == "forward" and u == n - 1)
    ),
}


# ---- 07.3 hybrid sharding -------------------------------------------------------------------------------------


def _parts(totals: list[Tensor], factor: int) -> list[Tensor]:
    """For each rank its part of its own total."""
    return [total.split(len(total) // factor)[rank % factor] for rank, total in enumerate(totals)]


def _own_copy(own: list[Tensor], factor: int) -> list[Tensor]:
    """For each rank the sum over the ranks of its copy."""
    return [sum(own[rank // factor * factor :][:factor]) for rank in range(len(own))]


HYBRID: dict[str, Callable[[list[Tensor], int, int], list[Tensor]]] = {
    "when the sum is not divided by the number of ranks": (
        lambda own, copies, F: _parts([sum(own)] * len(own), F)
    ),
    "when the sum is divided by F, and not by the number of copies too": (
        lambda own, copies, F: _parts([sum(own) / F] * len(own), F)
    ),
    "when the sum is divided by the number of copies, and not by F too": (
        lambda own, copies, F: _parts([sum(own) / copies] * len(own), F)
    ),
    "when each copy averages over its own ranks only": (
        lambda own, copies, F: _parts([total / F for total in _own_copy(own, F)], F)
    ),
    "when each copy sums over its own ranks only, divided by all ranks": (
        lambda own, copies, F: _parts([total / len(own) for total in _own_copy(own, F)], F)
    ),
    "when nothing is divided where there is only one copy": (
        lambda own, copies, F: _parts([sum(own) / (1 if copies == 1 else len(own))] * len(own), F)
    ),
    "when nothing is divided where F is 1": (
        lambda own, copies, F: _parts([sum(own) / (1 if F == 1 else len(own))] * len(own), F)
    ),
    "when each rank returns its part of its own gradient": lambda own, copies, F: _parts(own, F),
    "when each rank returns the whole mean, and not its part": (
        lambda own, copies, F: [sum(own) / len(own)] * len(own)
    ),
}


def _costs(elements: int, F: int, copies: int) -> tuple[float, float]:
    return 4 * elements * (F - 1) / F, 2 * 4 * elements / F * (copies - 1) / copies


PREDICTED: dict[str, Callable[[int, int, int], list[float]]] = {
    "when inside and between are exchanged": lambda n, F, c: list(_costs(n, F, c))[::-1],
    "when the whole gradient is sent between copies, and not a shard": (
        lambda n, F, c: [_costs(n, F, c)[0], _costs(n, F, c)[1] * F]
    ),
    "when elements are counted and not bytes": lambda n, F, c: [cost / 4 for cost in _costs(n, F, c)],
    "when the all-reduce is counted as one reduce-scatter": (
        lambda n, F, c: [_costs(n, F, c)[0], _costs(n, F, c)[1] / 2]
    ),
    "when all W ranks are counted as one group": (
        lambda n, F, c: [_costs(n, F * c, 1)[0], _costs(n, F, F * c)[1]]
    ),
    "when the reduce-scatter is counted over all W ranks, and not over F": (
        lambda n, F, c: [_costs(n, F * c, 1)[0], _costs(n, F, c)[1]]
    ),
    "when the all-reduce is counted over all W ranks, and not over the copies": (
        lambda n, F, c: [_costs(n, F, c)[0], _costs(n, F, F * c)[1]]
    ),
    "when the reduce-scatter is counted as an all-reduce": (
        lambda n, F, c: [_costs(n, F, c)[0] * 2, _costs(n, F, c)[1]]
    ),
}


# ---- 07.4 mixed precision -------------------------------------------------------------------------------------


def _mean(own: list[Tensor]) -> Tensor:
    return sum(gradient.double() for gradient in own) / len(own)


def _rounded_shard(before: Tensor, own: list[Tensor], lr: float, scale: Tensor) -> Tensor:
    after = (before.bfloat16() - (lr * _mean(own)).bfloat16()).double()
    return (before.double() - after) / lr / scale


def _divided_in_bfloat16(before: Tensor, own: list[Tensor], lr: float, scale: Tensor) -> Tensor:
    return sum((gradient / len(own)).double() for gradient in own) / scale


def _from_the_rounded_shard(before: Tensor, own: list[Tensor], lr: float, scale: Tensor) -> Tensor:
    return (before.double() - (before.bfloat16().double() - lr * _mean(own))) / lr / scale


LOSS_DIVIDED = (
    "when the loss is divided by the number of ranks: backward then rounds every gradient to bfloat16 after the "
    "division"
)
SUMMED_IN_BFLOAT16 = (
    "when the gradients are summed in bfloat16, in which large numbers that cancel lose their digits"
)
MIXED: dict[str, Callable[[Tensor, list[Tensor], float, Tensor], Tensor]] = {
    "when the gradients are not divided by the number of ranks": (
        lambda before, own, lr, scale: _mean(own) * len(own) / scale
    ),
    "when `shard` is not changed in place": lambda before, own, lr, scale: torch.zeros_like(_mean(own)),
    "when the update is computed in bfloat16, so that the shard keeps only 8 bits": _rounded_shard,
    "when the update starts from the parameters in bfloat16, and not from `shard`": _from_the_rounded_shard,
    "when the gradients are divided by the number of ranks in bfloat16, and only then turned into fp32": (
        _divided_in_bfloat16
    ),
    "when `lr` is left out": lambda before, own, lr, scale: _mean(own) / lr / scale,
    "when the gradient is added and not subtracted": lambda before, own, lr, scale: -_mean(own) / scale,
}
