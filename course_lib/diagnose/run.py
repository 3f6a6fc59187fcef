"""Runs a step on one device and on ranks, and says what is wrong with it."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_lib.diagnose.judge import Cause, Judge
from course_lib.diagnose.ledger.ledger import Ledger
from course_lib.diagnose.recording.record import AFTER, GRADIENT, OUTPUT, WEIGHT, Item, NoStepError, record
from course_lib.diagnose.sentences import sentence
from course_lib.runtime import RankError, launch
from course_lib.runtime.launch import checked_ranks


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        causes: earliest first; none for a right step, or for one that did not end.
        sentences: one for each cause; for a step that raised or hung, what ``launch`` says.
        compared: how many weights, outputs, gradients and updated weights were held to one device's.
        all: how many one device has.
        epsilon: of the coarsest type of number among them.
        failed: whether the step did not end on the ranks.
    """

    causes: tuple[Cause, ...]
    sentences: tuple[str, ...]
    compared: dict[str, int]
    all: dict[str, int]
    epsilon: float = 0.0
    failed: bool = False

    def summary(self) -> str:
        """What a right step is told, and what of it could not be seen."""
        names = {
            WEIGHT: "weights",
            OUTPUT: "outputs of modules",
            GRADIENT: "gradients",
            AFTER: "updated weights",
        }
        said = ", ".join(f"{self.compared[kind]} of {self.all[kind]} {name}" for kind, name in names.items())
        coarse = (
            ""
            if self.epsilon < 1e-12
            else (f" Some values are of lower precision (unit {self.epsilon:.1g}), which hides small faults.")
        )
        return f"No fault found. Compared with one device's: {said}.{coarse}"


def diagnose(
    step: Callable[[int, int], Any] | Path,
    ranks: int | None = None,
    mesh: Mapping[str, int] | None = None,
    timeout: float = 120.0,
) -> Diagnosis:
    """Hold ``step`` on ``ranks`` CPU ranks to ``step`` on one.

    Args:
        step: ``step(rank, ranks)`` builds a model, makes one or a few training steps and returns the model; or a
            file that defines it. It makes the same weights and the same batch whatever ``ranks`` is.
        ranks: 4, or as many as the mesh has.
        mesh: names of the axes and their sizes, for the sentences.

    Raises:
        ValueError: a step, mesh or number of ranks that cannot be used, or no parameter to compare.
        RankError: the step failed on one device.
    """
    ranks = ranks if mesh is None and ranks is None else checked_ranks(ranks, mesh)
    ranks = 4 if ranks is None else ranks
    if ranks < 2:
        raise ValueError(f"ranks must be 2 or more, not {ranks}: one device is what they are compared with")
    try:
        one = launch(on_rank, 1, args=(step,), timeout=timeout, backend="gloo", quiet=True)[0]
    except RankError as error:
        if isinstance(error.__cause__, NoStepError):
            raise error.__cause__ from None
        raise
    try:
        several = launch(on_rank, ranks, args=(step,), timeout=timeout, backend="gloo", quiet=True)
    except RankError as error:
        return Diagnosis((), (str(error),), {}, {}, failed=True)
    return judged(one, several, mesh or {})


def judged(one: list[Item], several: list[list[Item]], mesh: Mapping[str, int]) -> Diagnosis:
    """What the items of one device and of every rank tell."""
    ledger = Ledger(one, several, mesh)
    causes = Judge(ledger).causes()
    kinds = (WEIGHT, OUTPUT, GRADIENT, AFTER)
    every = {kind: sum(key[0] == kind for key in ledger.one) for kind in kinds}
    shared = {kind: sum(key[0] == kind and key in ledger.ranks for key in ledger.one) for kind in kinds}
    return Diagnosis(tuple(causes), tuple(map(sentence, causes)), shared, every, ledger.epsilon)


def on_rank(step: Callable[[int, int], Any] | Path) -> list[Item]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if isinstance(step, Path):
        torch.set_default_dtype(torch.float64)  # for tensors that the file makes when it is read
        step = named_step(runpy.run_path(str(step)), step)
    return record(step, rank, ranks)


def named_step(names: dict[str, Any], file: Path) -> Callable[[int, int], Any]:
    """The function ``step`` of a file; ``NoStepError`` where it has none with two arguments."""
    step = names.get("step")
    if not callable(step) or len(inspect.signature(step).parameters) != 2:
        raise NoStepError(f"{file} must define a function step(rank, ranks)")
    return step


def mesh_of(axes: str) -> dict[str, int] | None:
    """``dp=2,tp=2`` as names and sizes; ``None`` for nothing, ``ValueError`` for anything else."""
    pairs = [pair.partition("=") for pair in axes.split(",")] if axes else []
    if not all(name and size.isdecimal() for name, _, size in pairs):
        raise ValueError(f"--mesh must name axes and their sizes, such as dp=2,tp=2, not {axes!r}")
    return {name: int(size) for name, _, size in pairs} or None
