"""Exercise 06.3: the step on one device, right and with each fault that the answer may have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks.zero_step import faulty_step
from course_lib.runtime import launch

# What may be wrong with the mean of the gradients …
SUMMED = "the gradients of the ranks are added up and not averaged"
NOT_REDUCED = "each rank takes its shard of its own gradient, and nothing is reduced"
DIVIDED_LATE = "the gradient is clipped first and divided by the number of ranks afterwards"
# … with its clipping …
LOCAL = "each rank clips by the norm of its own shard"
NORMS_ADDED = "the norms of the shards are added up, and not their squares"
NO_ROOT = "the gradient is clipped by the square of its norm: the root is missing"
AVERAGED = "the sum of the squares is divided by the number of ranks"
OWN_CLIPPED = "each rank clips its own gradient before the reduce-scatter, and not the mean after it"
NOT_CLIPPED = "nothing is clipped"
ALWAYS = "every gradient gets the norm `max_norm`, also one whose norm is smaller"
# … with the momentum …
TWICE = "the first step adds the gradient to the momentum twice"
NO_MOMENTUM = "the momentum of the step before is not kept"
MOMENTUM_CLIPPED = "the momentum is clipped, and not the gradient"
UPDATE_CLIPPED = "what is subtracted from the weights is clipped, and not the gradient"
LR_KEPT = "the momentum is multiplied by `lr` in place, so that `state` keeps the product"
DAMPED = "the gradient is multiplied by 1 - `momentum` in every step"
DAMPED_LATER = "the gradient is multiplied by 1 - `momentum` in every step after the first"
OLD = "the weights are updated with the momentum of the step before"
# … and with the weights.
ADDED = "`lr` times the momentum is added to the weights, and not subtracted"
NOT_GATHERED = "each rank changes its own shard of the weights, and nothing is gathered"
UNCHANGED = "`weights` is not changed in place"

FAULTS = (SUMMED, LOCAL, TWICE)  # those of ``faulty_step``
OF_MEAN = (NOT_REDUCED, DIVIDED_LATE)
OF_CLIPPING = (NORMS_ADDED, NO_ROOT, AVERAGED, OWN_CLIPPED, NOT_CLIPPED, ALWAYS)
OF_MOMENTUM = (NO_MOMENTUM, MOMENTUM_CLIPPED, UPDATE_CLIPPED, LR_KEPT, DAMPED, DAMPED_LATER, OLD)
OF_WEIGHTS = (ADDED, NOT_GATHERED, UNCHANGED)

# The weights before the first step, for each step the gradient of each rank, and the settings.
Training = tuple[Tensor, Sequence[Sequence[Tensor]], dict[str, float]]


def on_one_device(
    weights: Tensor,
    gradients: Sequence[Sequence[Tensor]],
    faults: Sequence[str] = (),
    lr: float = 0.1,
    momentum: float = 0.9,
    max_norm: float = 1.0,
) -> list[Tensor]:
    """The weights after each step, computed in one process, in double precision.

    Args:
        weights: (n,), as they are before the first step.
        gradients: for each step, the gradient of each rank, (n,) all of them.
        faults: sentences above, of what is made wrong.
    """
    now, kept, seen = weights.double(), None, []
    for of_ranks in gradients:
        clip = partial(_clip, faults=faults, max_norm=max_norm, p=len(of_ranks))
        mean = _mean(of_ranks, faults, max_norm)
        if not {MOMENTUM_CLIPPED, UPDATE_CLIPPED} & set(faults):
            mean = clip(mean)
        kept, update = _momentum(kept, mean, faults, momentum, clip)
        change = lr * update
        if LR_KEPT in faults:
            kept = change
        if UNCHANGED not in faults:
            now = now + change if ADDED in faults else now - change
        seen.append(now)
    return seen


def _momentum(
    before: Tensor | None,
    mean: Tensor,
    faults: Sequence[str],
    momentum: float,
    clip: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """The momentum after this step, and what is subtracted from the weights, times ``lr``."""
    first = before is None
    before = torch.zeros_like(mean) if first else before
    if TWICE in faults and first:
        mean = (1 + momentum) * mean
    if DAMPED in faults or (DAMPED_LATER in faults and not first):
        mean = (1 - momentum) * mean
    kept = mean if NO_MOMENTUM in faults else momentum * before + mean
    if MOMENTUM_CLIPPED in faults:
        kept = clip(kept)
    if OLD in faults:
        return kept, before
    return kept, clip(kept) if UPDATE_CLIPPED in faults else kept


def _mean(of_ranks: Sequence[Tensor], faults: Sequence[str], max_norm: float) -> Tensor:
    """The mean of the ranks' gradients, (n,), not clipped yet."""
    p, own = len(of_ranks), [g.double() for g in of_ranks]
    if NOT_REDUCED in faults:
        return torch.cat([g.chunk(p)[rank] for rank, g in enumerate(own)])
    if OWN_CLIPPED in faults:
        own = [g * (max_norm / max(g.norm().item(), max_norm)) for g in own]
    return sum(own) / (1 if {SUMMED, DIVIDED_LATE} & set(faults) else p)


def _clip(gradient: Tensor, faults: Sequence[str], max_norm: float, p: int) -> Tensor:
    """What was (n,), each rank's shard multiplied by its factor."""
    shards = gradient.chunk(p)
    norms = [gradient.norm().item()] * p
    if LOCAL in faults:
        norms = [shard.norm().item() for shard in shards]
    elif NORMS_ADDED in faults:
        norms = [sum(shard.norm().item() for shard in shards)] * p
    elif NO_ROOT in faults:
        norms = [norm**2 for norm in norms]
    elif AVERAGED in faults:
        norms = [norm / p**0.5 for norm in norms]
    elif {NOT_CLIPPED, OWN_CLIPPED} & set(faults):
        norms = [max_norm] * p
    factors = [max_norm / (norm if ALWAYS in faults else max(norm, max_norm)) for norm in norms]
    scaled = torch.cat([shard * factor for shard, factor in zip(shards, factors, strict=True)])
    return scaled / p if DIVIDED_LATE in faults else scaled


def mistakes() -> dict[str, Any]:
    """Each fault of ``faulty_step``, every two and all three of them, and each other mistake alone and with one of
    them, as programs of ``weights, gradients, settings``."""
    made = [faults for count in (1, 2, 3) for faults in combinations(FAULTS, count)]
    made += [(one,) for one in (*OF_MEAN, *OF_CLIPPING, *OF_MOMENTUM, *OF_WEIGHTS)]
    made += [(fault, one) for one in OF_MEAN for fault in (LOCAL, TWICE)]
    made += [(fault, one) for one in OF_CLIPPING for fault in (SUMMED, TWICE)]
    made += [(fault, one) for one in OF_MOMENTUM for fault in (SUMMED, LOCAL)]
    made.remove((SUMMED, ALWAYS))  # gives the same as ALWAYS by itself
    programs = {}
    for *most, last in made:
        sentence = "when " + (f"{', '.join(most)} and {last}" if most else last)
        programs[sentence] = partial(_every_rank, faults=(*most, last))
    return programs


def one_state_for_all(trainings: Sequence[Training]) -> list[list[Tensor]]:
    """What each rank would have in each training, if the trainings, a step each in turns, shared one momentum."""
    kept, now, seen = None, [start.double() for start, _, _ in trainings], [[] for _ in trainings]
    for step in range(len(trainings[0][1])):
        for i, (_, gradients, settings) in enumerate(trainings):
            mean = torch.stack([g.double() for g in gradients[step]]).mean(0)
            mean *= settings["max_norm"] / max(mean.norm().item(), settings["max_norm"])
            kept = mean if kept is None else settings["momentum"] * kept + mean
            now[i] = now[i] - settings["lr"] * kept
            seen[i].append(now[i])
    return [[torch.stack(steps)] * len(trainings[0][1][0]) for steps in seen]


def _every_rank(
    weights: Tensor, gradients: Sequence[Sequence[Tensor]], settings: dict[str, float], faults: Sequence[str]
) -> list[Tensor]:
    """What each rank would have after every step: (steps, n)."""
    p, after = len(gradients[0]), torch.stack(on_one_device(weights, gradients, faults, **settings))
    if NOT_GATHERED not in faults:
        return [after] * p
    owner = torch.arange(p).repeat_interleave(len(weights) // p)
    return [torch.where(owner == rank, after, weights.double()) for rank in range(p)]


def _changes(ranks_and_seeds: tuple[int, int]) -> list[Tensor]:
    """The change of the weights in each step of ``faulty_step``."""
    steps, n = ranks_and_seeds
    weights, state, changes = torch.zeros(n), {}, []
    for _ in range(steps):
        before = weights.clone()
        faulty_step(weights, 0.01 * torch.ones(n), state)
        changes.append(weights - before)
    return changes


def measured_against_one_device(ranks: int, steps: int) -> list[list[Any]]:
    """Rows of a table: in each step, by how many times too large each shard's change is; the same gradient always."""
    n = 4 * ranks
    changes = launch(_changes, ranks, args=((steps, n),), backend="gloo")[0]
    weights = torch.zeros(n)
    right = on_one_device(weights, [[0.01 * torch.ones(n)] * ranks] * steps)
    rows = []
    for step, (change, now) in enumerate(zip(changes, right, strict=True)):
        ratios = (change.double() / (now - weights)).chunk(ranks)
        rows.append([f"step {step + 1}", *(f"{ratio.mean().item():.3f}" for ratio in ratios)])
        weights = now
    return rows
