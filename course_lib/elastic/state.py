"""What must be the same on all ranks before the next step, and how ranks that differ become the same again."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.elastic.sampler import ElasticSampler


class TrainingState:
    """Model, optimizer, sampler, and how far training is.

    Attributes:
        step: how many steps have been done.
        history: for each of them, the round in which it was done.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, sampler: ElasticSampler) -> None:
        self.model, self.optimizer, self.sampler = model, optimizer, sampler
        self.step = 0
        self.history: list[int] = []

    def commit(self, round: int) -> None:
        """Count the step that the optimizer has just taken, and go on to the next batch."""
        self.step += 1
        self.history.append(round)
        self.sampler.advance()

    def state_dict(self) -> dict[str, Any]:
        parts = {k: getattr(self, k).state_dict() for k in ("model", "optimizer", "sampler")}
        return {**parts, "step": self.step, "history": list(self.history)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for part in ("model", "optimizer", "sampler"):
            getattr(self, part).load_state_dict(state[part])
        self.step, self.history = state["step"], list(state["history"])


@torch.no_grad()
def share_newest(state: TrainingState, group: dist.ProcessGroup | None = None) -> int:
    """Bring all ranks to the state of the one that has done the most steps; of several, the first. All ranks call it.

    When a rank is killed in a step, the other ranks differ by one step at most: those that got all messages have done
    the step, and the others have not. A rank that has just been started is at step 0.

    Returns:
        How many bytes the state has; every rank but one has received them.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    steps: list[Any] = [None] * ranks
    dist.all_gather_object(steps, state.step, group=group)
    newest = steps.index(max(steps))
    packed = pack(state.state_dict()) if rank == newest else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([len(packed)])
    dist.broadcast(length, group=group, group_src=newest)
    if rank != newest:
        packed = torch.empty(int(length), dtype=torch.uint8)
    dist.broadcast(packed, group=group, group_src=newest)
    if rank != newest:
        state.load_state_dict(unpack(packed))
    return len(packed)


def pack(state: Mapping[str, Any]) -> Tensor:
    """The state as bytes, uint8 ``(bytes,)``, in the CPU's memory."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)


def unpack(packed: Tensor) -> dict[str, Any]:
    return torch.load(io.BytesIO(packed.numpy().tobytes()), map_location="cpu", weights_only=True)
