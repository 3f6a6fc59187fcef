"""What a pipeline schedule is made of: an ordered list of actions for every rank.

A schedule is data. ``simulator.pipeline.engine`` predicts when each action starts and ends; an executor on real ranks
runs the same lists. A schedule holds no times, only which rank does what in which order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulator.inputs.checks import at_least, index
from simulator.inputs.placement import rank_of, stages_of

KINDS = ("F", "B", "W", "BW")


class Action(NamedTuple):
    """One piece of work on one microbatch in one stage.

    Args:
        kind: ``"F"`` forward; ``"B"`` backward for the input only; ``"W"`` backward for the weights only, which
            needs that ``"B"`` (the split of zero-bubble pipelines, arXiv:2401.10241); ``"BW"`` both at once.
        stage: counted through the whole model, 0 .. ranks * chunks - 1.
        microbatch: counted from 0.
    """

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind[0]}{self.microbatch} of stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """Who does what in which order.

    Args:
        name: ``"1f1b"``, ``"zb-v"``…
        ranks: the pipeline's size, p.
        microbatches: m.
        chunks: stages held by each rank, v; there are ``ranks * chunks`` stages.
        actions: for every rank, what it does, in order.
        placement: ``"loop"`` or ``"v"``: which rank holds which stage (``simulator.inputs.placement``).
        overlapped: for every rank, the positions of the forwards that run together with the backward behind
            them, each filling the other's waits for communication (DualPipe, arXiv:2412.19437). Empty: none do.
    """

    name: str
    ranks: int
    microbatches: int
    chunks: int
    actions: tuple[tuple[Action, ...], ...]
    placement: str = "loop"
    overlapped: tuple[frozenset[int], ...] = ()

    def __post_init__(self) -> None:
        at_least(1, ranks=self.ranks, microbatches=self.microbatches, chunks=self.chunks)
        if len(self.actions) != self.ranks:
            raise ValueError(
                f"a schedule for {self.ranks} ranks needs as many lists, not {len(self.actions)}"
            )
        for rank, actions in enumerate(self.actions):
            for kind, stage, microbatch in actions:
                if kind not in KINDS:
                    raise ValueError(f"rank {rank} has an action {kind!r}: the kinds are {', '.join(KINDS)}")
                if not (0 <= stage < self.stages and 0 <= microbatch < self.microbatches):
                    raise ValueError(
                        f"rank {rank} has {Action(kind, stage, microbatch)}: there are {self.stages} stages "
                        f"and {self.microbatches} microbatches"
                    )

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    def rank_of(self, stage: int) -> int:
        """The rank that holds this stage."""
        index(self.stages, stage=stage)
        return rank_of(stage, self.ranks, self.placement)

    def stages_of(self, rank: int) -> list[int]:
        """The stages this rank holds, in the model's order: its chunks."""
        return stages_of(rank, self.ranks, self.chunks, self.placement)

    def span_name(self, action: Action) -> str:
        """How a timeline calls this action: ``"F3"``; with several chunks a rank ``"F3 stage 5"``.

        A whole backward is called ``"B3"``, as in the literature.
        """
        name = f"{action.kind[0]}{action.microbatch}"
        return name if self.chunks == 1 else f"{name} stage {action.stage}"

    def __len__(self) -> int:
        """How many actions there are, on all ranks."""
        return sum(map(len, self.actions))
