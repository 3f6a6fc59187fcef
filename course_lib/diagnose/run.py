"""Runs a step on one device and on ranks, and says what is wrong with it."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.diagnose.judge import Cause, Judge
from course_lib.diagnose.ledger import Ledger
from course_lib.diagnose.record import AFTER, GRADIENT, OUTPUT, WEIGHT, Item, record
from course_lib.diagnose.sentences import sentence
from course_lib.runtime import RankError, launch


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        causes: earliest first; none for a right step, or for one that did not end.
        sentences: one for each cause; for a step that raised or hung, what ``launch`` says.
        compared: how many parameters, gradients, outputs and updates were held to one device's.
        failed: whether the step did not end on the ranks.
    """

    causes: tuple[Cause, ...]
    sentences: tuple[str, ...]
    compared: dict[str, int]
    epsilon: float = 0.0
    failed: bool = False


def diagnose(
    step: Callable[[int, int], Any] | Path, ranks: int = 4, mesh: Mapping[str, int] = {}, timeout: float = 120
) -> Diagnosis:
    """Hold ``step`` on ``ranks`` CPU ranks to ``step`` on one.

    Args:
        step: ``step(rank, ranks)`` builds a model, makes one or a few training steps and returns the model; or a
            file that defines it. It makes the same weights and the same batch whatever ``ranks`` is.
        mesh: names of the axes and their sizes, for the sentences.

    Raises:
        ValueError: a step, mesh or number of ranks that cannot be used, or no parameter to compare.
        RankError: the step failed on one device.
    """
    if not isinstance(ranks, int) or ranks < 2:
        raise ValueError(f"ranks must be 2 or more, not {ranks!r}: one device is what they are compared with")
    size = 1
    for n in mesh.values():
        size *= n
    if mesh and size != ranks:
        raise ValueError(f"mesh {dict(mesh)} has {size} ranks, and {ranks} are asked for")
    one = launch(on_rank, 1, args=(step,), timeout=timeout, backend="gloo", quiet=True)[0]
    try:
        several = launch(on_rank, ranks, args=(step,), timeout=timeout, backend="gloo", quiet=True)
    except RankError as error:
        return Diagnosis((), (str(error),), {}, failed=True)
    ledger = Ledger(one, several, mesh)
    causes = Judge(ledger).causes()
    shared = [key[0] for key in ledger.one if key in ledger.ranks]
    counts = {kind: shared.count(kind) for kind in (WEIGHT, OUTPUT, GRADIENT, AFTER)}
    return Diagnosis(tuple(causes), tuple(map(sentence, causes)), counts, ledger.epsilon)


def on_rank(step: Callable[[int, int], Any] | Path) -> list[Item]:
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    if isinstance(step, Path):
        torch.set_default_dtype(torch.float64)  # for tensors that the file makes when it is read
        step = named_step(runpy.run_path(str(step)), step)
    return record(step, rank, ranks)


def named_step(names: dict[str, Any], file: Path) -> Callable[[int, int], Any]:
    """The function ``step`` of a file; ``ValueError`` where it has none with two arguments."""
    step = names.get("step")
    if not callable(step) or len(inspect.signature(step).parameters) != 2:
        raise ValueError(f"{file} must define a function step(rank, ranks)")
    return step
