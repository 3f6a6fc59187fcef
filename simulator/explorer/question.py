"""What the explorer is asked: a schedule, its ranks and microbatches, and what each action takes in time and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simulator.explorer.from_page import FromPage
from simulator.inputs.checks import at_least, not_negative, one_of, refuse, speeds_of
from simulator.inputs.placement import SCHEDULES, chunks_of

OWN = "your own"  # the name of a schedule that the reader has written
RECOMPUTE = ("none", "full")
MOST_FORWARDS = 70_000  # 64 ranks x 512 microbatches x 2 chunks: what a page still draws at once


@dataclass(frozen=True)
class Question(FromPage):
    """What is drawn. Times and bytes are those of one microbatch in all chunks of a rank together.

    So a schedule with two chunks a rank is compared with one that has a single chunk for the same model: each stage
    takes half of the time, and saves half of the bytes.

    Args:
        schedule, ranks, microbatches, chunks: as for ``make_schedule``; or ``OWN``, whose actions say the chunks.
        forward, backward_input, backward_weight: time of F, B and W, in any unit.
        transfer: time of a message to another rank.
        together: time of a forward and a backward that run at once (``"dualpipe-v"``); None: one after the other.
        speeds: of every rank; None: all 1.
        saved: bytes that a forward keeps for its backward.
        kept: part of them that the weights' backward needs, 0 to 1.
        recompute: ``"full"`` keeps only a stage's input; backward computes the forward again first
            (arXiv:1811.06965, section 2.3).
        checkpoint: part of ``saved`` that a stage's input takes, 0 to 1.
    """

    schedule: str = "1f1b"
    ranks: int = 4
    microbatches: int = 8
    chunks: int | None = None
    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    transfer: float = 0.0
    together: float | None = None
    speeds: Sequence[float] | None = None
    saved: float = 1e9
    kept: float = 1.0
    recompute: str = "none"
    checkpoint: float = 0.1

    def __post_init__(self) -> None:
        one_of("schedule", self.schedule, (*SCHEDULES, OWN))
        at_least(1, ranks=self.ranks)
        at_least(1, microbatches=self.microbatches)
        forwards = self.ranks * self.microbatches * self.chunks_a_rank
        if forwards > MOST_FORWARDS:
            raise ValueError(
                f"ranks x microbatches x chunks must be at most {MOST_FORWARDS} here, not {forwards}"
            )
        for name in ("forward", "backward_input", "backward_weight", "transfer", "saved"):
            not_negative(**{name: getattr(self, name)})
        if self.forward + self.backward_input + self.backward_weight == 0:
            raise ValueError("forward, backward input and backward weight must not all be 0")
        if self.together is not None:
            not_negative(together=self.together)
        speeds_of(self.speeds, self.ranks)
        one_of("recompute", self.recompute, RECOMPUTE)
        for name in ("kept", "checkpoint"):
            value = getattr(self, name)
            not_negative(**{name: value})
            if value > 1:
                refuse(name, "between 0 and 1", value)

    @cached_property
    def chunks_a_rank(self) -> int:
        if self.schedule != OWN:
            return chunks_of(self.schedule, self.chunks)
        chunks = 1 if self.chunks is None else self.chunks
        at_least(1, chunks=chunks)
        return chunks

    @property
    def times(self) -> dict[str, Any]:
        """What ``simulate`` takes: the times of one stage."""
        v = self.chunks_a_rank
        again = self.forward if self.recompute == "full" else 0
        return {
            "forward": self.forward / v,
            "backward_input": (self.backward_input + again) / v,
            "backward_weight": self.backward_weight / v,
            "transfer": self.transfer,
            "overlapped": None if self.together is None else self.together / v,
            "speeds": self.speeds,
        }

    @property
    def bytes_of_a_stage(self) -> tuple[float, float, float]:
        """(saved by F, brought back by recomputation, kept from B until W) of one microbatch."""
        whole = self.saved / self.chunks_a_rank
        saved = whole * self.checkpoint if self.recompute == "full" else whole
        return saved, whole - saved, whole * self.kept
