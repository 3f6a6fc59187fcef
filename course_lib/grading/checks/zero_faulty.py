"""Exercise 06.3: the step on one device, right and with each fault that the answer may have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.checks.zero_step import faulty_step
from course_lib.runtime import launch

SUMMED = "the gradients of the ranks are added up and not averaged"
LOCAL = "each rank clips by the norm of its own shard"
TWICE = "the first step adds the gradient to the momentum twice"
FAULTS = (SUMMED, LOCAL, TWICE)
NORMS_ADDED = "the norms of the shards are added up, and not their squares"
DIVIDED_LATE = "the gradient is clipped first and divided by the number of ranks afterwards"
NO_MOMENTUM = "the momentum of the step before is not kept"
ALWAYS = "every gradient gets the norm `max_norm`, also one whose norm is smaller"
MOMENTUM_CLIPPED = "the momentum is clipped, and not the gradient"

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
        faults: those of ``FAULTS`` that are made.
    """
    now, kept, seen = weights.double(), None, []
    for of_ranks in gradients:
        p = len(of_ranks)
        mean = torch.stack([g.double() for g in of_ranks]).sum(0)
        if not {SUMMED, DIVIDED_LATE} & set(faults):
            mean /= p
        if MOMENTUM_CLIPPED in faults and kept is not None:
            mean = mean + momentum * kept
        shards = mean.chunk(p)
        norms = [mean.norm().item()] * p
        if LOCAL in faults:
            norms = [shard.norm().item() for shard in shards]
        elif NORMS_ADDED in faults:
            norms = [sum(shard.norm().item() for shard in shards)] * p
        factors = [max_norm / (norm if ALWAYS in faults else max(norm, max_norm)) for norm in norms]
        scaled = [shard * factor for shard, factor in zip(shards, factors, strict=True)]
        mean = torch.cat(scaled) / (p if DIVIDED_LATE in faults else 1)
        if kept is None or {NO_MOMENTUM, MOMENTUM_CLIPPED} & set(faults):
            kept = (1 + momentum) * mean if TWICE in faults else mean
        else:
            kept = momentum * kept + mean
        now = now - lr * kept
        seen.append(now)
    return seen


def mistakes() -> dict[str, Any]:
    """Each fault alone, and every two or three of them, as programs of ``weights, gradients, settings``."""
    made = [faults for count in (1, 2, 3) for faults in combinations(FAULTS, count)]
    made += [(NORMS_ADDED,), (DIVIDED_LATE,), (NO_MOMENTUM,), (NORMS_ADDED, TWICE), (SUMMED, NORMS_ADDED)]
    made += [(ALWAYS,), (MOMENTUM_CLIPPED,)]
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
    return [torch.stack(on_one_device(weights, gradients, faults, **settings))] * len(gradients[0])


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
