"""An interactive view of pipeline schedules and of memory: the timeline, the bytes, and the reason for every bubble.

``explore()`` and ``explore_memory()`` show it in a notebook; ``explore().save("explorer.html")`` writes it as one file.
"""

from __future__ import annotations

from typing import Any

from simulator.explorer.calculator import MemoryQuestion
from simulator.explorer.measured import Measured
from simulator.explorer.own import Own, schedule_of
from simulator.explorer.question import OWN, Question
from simulator.explorer.views import Explorer, MemoryExplorer
from simulator.ledgers.timeline import Timeline
from simulator.pipeline.actions import Schedule

__all__ = ["Explorer", "MemoryExplorer", "MemoryQuestion", "Question", "explore", "explore_memory"]


def explore(
    schedule: str | Own = "1f1b",
    ranks: int = 4,
    microbatches: int = 8,
    challenge: dict[str, float] | None = None,
    measured: Timeline | None = None,
    **values: Any,
) -> Explorer:
    """Show a pipeline schedule that can be changed: its timeline, its memory, and the reason for every bubble.

    >>> explore("zb-v", ranks=4, microbatches=8, transfer=0.1)  # doctest: +SKIP

    >>> def all_forwards_first(ranks, microbatches):
    ...     order = [f"F{i}" for i in range(microbatches)] + [f"B{i}" for i in range(microbatches)]
    ...     return [order for rank in range(ranks)]
    >>> explore(all_forwards_first, ranks=4, microbatches=8).execution().makespan
    33.0

    Args:
        schedule, ranks, microbatches: what is shown first. In place of a schedule's name a function may stand, which
            returns for every rank what it does, in order (``simulator.explorer.own.schedule_of``). It is called
            again whenever a slider changes the ranks or the microbatches. A ``Schedule`` may stand there, too.
        challenge: a task, ``{"makespan": 28, "bytes": 4e9}``: the reader must find a step that is at most that long
            and keeps at most that many bytes on each rank, and guesses the makespan before it is shown.
        measured: the timeline of one step that really ran under this schedule, such as ``gather_timeline`` returns. It
            is drawn below the prediction, which then begins with its times: the medians of F, B and W, and the fastest
            message, unless ``values`` say otherwise.
        values: the other parts of a ``Question``: ``chunks``, ``forward``, ``transfer``, ``speeds``, ``saved`` …

    Raises:
        ValueError: a value is wrong, or the schedule is no whole training step, in one sentence.
    """
    own = None if isinstance(schedule, str) else schedule
    if isinstance(own, Schedule):
        ranks, microbatches = own.ranks, own.microbatches
    given = {"schedule": OWN if own else schedule, "ranks": ranks, "microbatches": microbatches}
    if measured is None:
        return Explorer(Question.of(given | values), own, challenge)
    found = Measured.of(measured, schedule_of(Question.of(given | values), own))
    return Explorer(Question.of(given | found.times() | values), own, challenge, found)


def explore_memory(model: str = "llama-3-8b", gpu: str = "h100", **values: Any) -> MemoryExplorer:
    """Show what each rank holds under a plan, whether it fits, and the smallest changes that make it fit.

    >>> explore_memory("llama-3-70b", "h100", dp=8, tp=8, zero=1)  # doctest: +SKIP

    Args:
        model, gpu: names that the simulator knows.
        values: the other parts of a ``MemoryQuestion``: ``dp``, ``zero``, ``recompute`` …

    Raises:
        ValueError: a value is wrong, in one sentence.
    """
    return MemoryExplorer(MemoryQuestion.of({"model": model, "gpu": gpu, **values}))
