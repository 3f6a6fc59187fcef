"""Likely mistakes of exercises 06.2, 06.4 and 06.5, as programs that run in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from simulator.inputs.plan import Plan
from simulator.predict.memory import model_states

# ---- 06.2 shards of gradients -----------------------------------------------------------------------------

Gradients = list[
    list[Tensor | None]
]  # for each backward so far: of one parameter, the padded gradient on each rank


def shards(gradients: Gradients, elements: int | None = None, **slip: Any) -> list[Tensor] | None:
    """What every rank has after these backwards: the right entry, or one with a mistake.

    Args:
        elements: of the parameter, without padding.
        slip: ``divide`` False; ``twice``: divided twice; ``own``: not reduced; ``last``: only the last backward;
            ``again``: earlier gradients, left in ``.grad``, are in the later ones too; ``over_again``: the entry is
            divided after each backward; ``first_divided``: only that of the first backward is; ``unpadded``,
            ``short``, ``one_more``: cut without padding, with what is left over shared by the first ranks, or lost,
            or with parts that are always one longer than the division rounded down.
    """
    reached = [of_ranks for of_ranks in gradients if of_ranks[0] is not None]
    if not reached:
        return None
    if slip.get("again"):
        reached = [[sum(step[r] for step in reached[: k + 1]) for r in range(len(reached[0]))]
                   for k in range(len(reached))]  # fmt: skip
    if slip.get("last"):
        reached = reached[-1:]
    ranks = len(reached[0])
    own = [sum(step[r].chunk(ranks)[r] for step in reached) for r in range(ranks)]
    if slip.get("own"):
        return own if slip.get("divide") is False else [one / ranks for one in own]
    if slip.get("over_again"):
        entry = torch.zeros_like(reached[0][0])
        for step in reached:
            entry = (entry + sum(step)) / ranks
        return list(entry.chunk(ranks))
    total = sum(sum(step) for step in reached)
    if slip.get("first_divided"):
        total = total - sum(reached[0]) * (1 - 1 / ranks)
    mean = total if slip.get("divide") is False else total / (ranks**2 if slip.get("twice") else ranks)
    if slip.get("one_more"):
        length = elements // ranks + 1
        return list(F.pad(mean[:elements], (0, length * ranks - elements)).chunk(ranks))
    if slip.get("unpadded"):
        return list(mean[:elements].tensor_split(ranks))
    if slip.get("short"):
        return [part[: elements // ranks] for part in mean.split(max(1, elements // ranks))[:ranks]]
    return list(mean.chunk(ranks))


SHARDS: dict[str, Callable[[Gradients], Any]] = {
    "when the sum is not divided by the number of ranks": partial(shards, divide=False),
    "when each rank keeps its own gradient, and nothing is reduced": partial(shards, own=True, divide=False),
    "when each rank keeps its own gradient divided by the number of ranks": partial(shards, own=True),
    "when an entry holds the last backward only": partial(shards, last=True),
    "when all of an entry, and not only what is new, is divided after each backward": (
        partial(shards, over_again=True)
    ),
    "when the gradient is cut without padding, and the first ranks have one element more": (
        partial(shards, unpadded=True)
    ),
    "when the length of a part is rounded down": partial(shards, short=True),
    "when the length of a part is the division plus one, also where it divides evenly": (
        partial(shards, one_more=True)
    ),
    "when the sum is divided by the number of ranks twice": partial(shards, twice=True),
    "when only the first backward's sum is divided by the number of ranks": (
        partial(shards, divide=False, first_divided=True)
    ),
    "when earlier gradients are still in `.grad`, so that they are added again": partial(shards, again=True),
    "when earlier gradients are still in `.grad`, and an entry holds the last backward only": (
        partial(shards, again=True, last=True)
    ),
}


# ---- 06.4 what fits ---------------------------------------------------------------------------------------


def fitting(memory: float, ranks: int) -> list[float]:
    """The parameters that fit at stages 0 to 3."""
    return [memory / model_states(1, Plan(dp=ranks, zero=stage)).total for stage in range(4)]


def _bytes_of(parts: Callable[[int, int], float]) -> Callable[[float, int], list[float]]:
    return lambda memory, ranks: [memory / parts(stage, ranks) for stage in range(4)]


FITTING: dict[str, Callable[[float, int], list[float]]] = {
    "when the optimizer takes 8 bytes and not 12: it keeps an fp32 copy and two moments": _bytes_of(
        lambda s, p: 2 / (p if s > 2 else 1) + 2 / (p if s > 1 else 1) + 8 / (p if s > 0 else 1)
    ),
    "when parameters and gradients take 4 bytes": _bytes_of(
        lambda s, p: 4 / (p if s > 2 else 1) + 4 / (p if s > 1 else 1) + 12 / (p if s > 0 else 1)
    ),
    "when stage 1 shards the gradients as well": _bytes_of(
        lambda s, p: 2 / (p if s > 2 else 1) + 2 / (p if s > 0 else 1) + 12 / (p if s > 0 else 1)
    ),
    "when each stage shards one kind of state, and not those of the stages before it": _bytes_of(
        lambda s, p: 2 / (p if s == 3 else 1) + 2 / (p if s == 2 else 1) + 12 / (p if s == 1 else 1)
    ),
    "when the bytes of all that is sharded are divided by the ranks with `//`": _bytes_of(
        lambda s, p: (16, 4 + 12 // p, 2 + 14 // p, 16 // p)[s]
    ),
    "when the bytes of each kind of state are divided by the ranks with `//`": _bytes_of(
        lambda s, p: 2 // (p if s > 2 else 1) + 2 // (p if s > 1 else 1) + 12 // (p if s > 0 else 1)
    ),
    "when stage 1 shards everything": _bytes_of(lambda s, p: 16 / (p if s > 0 else 1)),
    "when stage 2 shards everything": _bytes_of(
        lambda s, p: 4 / (p if s > 1 else 1) + 12 / (p if s > 0 else 1)
    ),
    "when the fp32 copy is sharded at stage 3 only, with the parameters": _bytes_of(
        lambda s, p: 6 / (p if s > 2 else 1) + 2 / (p if s > 1 else 1) + 8 / (p if s > 0 else 1)
    ),
    "when the fp32 copy is not sharded at any stage": _bytes_of(
        lambda s, p: 4 + 2 / (p if s > 2 else 1) + 2 / (p if s > 1 else 1) + 8 / (p if s > 0 else 1)
    ),
    "when gradients take 4 bytes": _bytes_of(
        lambda s, p: 2 / (p if s > 2 else 1) + 4 / (p if s > 1 else 1) + 12 / (p if s > 0 else 1)
    ),
    "when the number is rounded down": lambda memory, ranks: [float(n // 1) for n in fitting(memory, ranks)],
    "when the number is rounded": lambda memory, ranks: [float(round(n)) for n in fitting(memory, ranks)],
    "when the memory of all ranks is added up": lambda memory, ranks: fitting(memory * ranks, ranks),
    "when the stages are counted from 0, so that DDP is stage 1": _bytes_of(
        lambda s, p: 2 / (p if s > 1 else 1) + 2 / (p if s > 0 else 1) + 12 / p
    ),
    "when DDP shards the optimizer states as well": _bytes_of(
        lambda s, p: 2 / (p if s > 2 else 1) + 2 / (p if s > 1 else 1) + 12 / p
    ),
    "when stage 1 shards the parameters and stage 3 the optimizer states": _bytes_of(
        lambda s, p: 2 / (p if s > 0 else 1) + 2 / (p if s > 1 else 1) + 12 / (p if s > 2 else 1)
    ),
}


# ---- 06.5 one norm ----------------------------------------------------------------------------------------

Spread = list[list[tuple[Tensor, int]]]


def norms(held: Spread, whole: list[Tensor], **slip: Any) -> list[float]:
    """The norm that each rank returns: the right one, or with a mistake."""
    of_ranks = []
    for own in held:
        tensors = [t if slip.get("padding") else t[:count] for t, count in own]
        of_ranks.append(sum(t.double().square().sum().item() for t in tensors))
    once = [t.double().square().sum().item() for t in whole]
    if slip.get("by_value"):
        once = [s for i, s in enumerate(once) if not any(torch.equal(whole[i], t) for t in whole[:i])]
    same = sum(once) + (once[0] if slip.get("tied") and once else 0)
    total = sum(of_ranks) + same * (len(held) if slip.get("copies") else 1)
    result = [total] * len(held)
    if slip.get("averaged"):
        result = [sum(of_ranks) / len(held) + same] * len(held)
    if slip.get("local"):
        result = [own + same for own in of_ranks]
    if slip.get("sharded_only"):
        result = [sum(of_ranks)] * len(held)
    if slip.get("norms_added"):
        result = [(sum(own**0.5 for own in of_ranks) + same**0.5) ** 2] * len(held)
    if slip.get("root_on_each"):
        result = [sum((own + same) ** 0.5 for own in of_ranks) ** 2] * len(held)
    return result if slip.get("square") else [value**0.5 for value in result]


NORMS: dict[str, Callable[[Spread, list[Tensor], float], list[float]]] = {
    sentence: lambda held, whole, _, slip=slip: norms(held, whole, **{name: True for name in slip.split()})
    for sentence, slip in {
        "when the padding is counted": "padding",
        "when the tied gradient is counted twice": "tied",
        "when the squares of `whole` are in the sum of every rank, and so in the all-reduce p times": "copies",
        "when the squares of the other ranks' shards are missing": "local",
        "when the squares of `whole` are missing": "sharded_only",
        "when norms are added up, and not squares": "norms_added",
        "when each rank takes the root, and the roots are added up": "root_on_each",
        "when the root is missing": "square",
        "when the all-reduced sum is divided by the number of ranks": "averaged",
        "when two tensors of `whole` that have equal values are taken for one tensor": "by_value",
        "when the padding is counted and the tied gradient is counted twice": "padding tied",
    }.items()
}


def scaled(held: Spread, whole: list[Tensor], max_norm: float, **slip: Any) -> list[Tensor]:
    """Each rank's real elements and ``whole`` after clipping, laid end to end."""
    norm = norms(held, whole)[0]
    factor = max_norm / norm if slip.get("always") and norm else max_norm / max(norm, max_norm)
    if slip.get("not_at_all"):
        factor = 1.0
    once = [factor] * len(whole)
    if slip.get("tied") and whole:
        once[0] = factor * factor
    if slip.get("sharded_only"):
        once = [1.0] * len(whole)
    common = [t.flatten() * f for t, f in zip(whole, once, strict=True)]
    part = 1.0 if slip.get("whole_only") else factor
    return [torch.cat([torch.zeros(0), *[t[:n] * part for t, n in own], *common]) for own in held]


SCALED: dict[str, Callable[[Spread, list[Tensor], float], list[Tensor]]] = {
    sentence: partial(scaled, **{slip: True})
    for sentence, slip in {
        "when a gradient is scaled up although its norm is below `max_norm`": "always",
        "when copies are scaled, or nothing": "not_at_all",
        "when the tied gradient is scaled twice": "tied",
        "when only the shards are scaled": "sharded_only",
        "when only `whole` is scaled": "whole_only",
    }.items()
}
