"""The run that chapter 20 watches: digits, read by a small network, trained by however many ranks there are."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.data.digits import load_digits
from course_lib.elastic.journal import JournalWriter
from course_lib.elastic.limits import Limits
from course_lib.elastic.replicas import Replicas
from course_lib.elastic.sampler import ElasticSampler
from course_lib.elastic.state import TrainingState
from course_lib.elastic.worker import Session


def new_state(samples: int, batch_size: int = 96, width: int = 64, seed: int = 0) -> TrainingState:
    """The same on all ranks and on one device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return TrainingState(model, optimizer, ElasticSampler(samples, batch_size, seed))


def train_digits(
    session: Session,
    steps: int,
    pause: float = 0.0,
    fatal: tuple[int, int, int] | None = None,
    save_every: int = 10,
) -> dict[str, Any]:
    """Train until ``steps`` steps have been done, in this round or in others.

    Args:
        pause: seconds of sleep in each step, so that there is time to watch.
        fatal: ``(step, rank, ranks)``: this rank kills itself with SIGKILL in the middle of an all-reduce, once. It
            does so in the first round of so many ranks, at this step or, if the round began later, at its first
            one. It has begun to send, and the others wait for the rest.
        save_every: so many steps lie between two checkpoints, if the fleet has a folder for them.
    """
    images, labels = load_digits()
    state = session.kept["state"] = session.kept.get("state") or new_state(len(labels))
    session.restore(state)
    step, *whom = fatal or (0,)
    is_fatal = whom == [session.rank, session.ranks] and not session.seen("kill")
    while state.step < steps:
        own = state.sampler.batch(session.rank, session.ranks)
        session.note_batch(state.step + 1, own)
        dies = is_fatal and state.step + 1 >= step
        loss = summed_step(state, images[own], labels[own], session if dies else None)
        time.sleep(pause)
        state.commit(session.round)
        if session.checkpoints is not None and session.rank == 0 and state.step % save_every == 0:
            session.checkpoints.save_async(state.state_dict(), state.step)
        session.border(state.step, loss)
    return {"step": state.step, "history": state.history, "model": state.model.state_dict()}


def summed_step(
    state: TrainingState, images: torch.Tensor, labels: torch.Tensor, dies: Session | None = None
) -> float:
    """One step of all ranks; returns the mean loss of the global batch. Until the update nothing is changed."""
    size = len(state.sampler.global_batch())
    state.optimizer.zero_grad()
    loss = nn.functional.cross_entropy(state.model(images), labels, reduction="sum") / size
    loss.backward()
    if dies:
        dies.journal.write("kill", killed=os.getpid(), step=state.step + 1)
        dist.all_reduce(next(state.model.parameters()).grad, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    for tensor in (*(p.grad for p in state.model.parameters()), loss.detach()):
        dist.all_reduce(tensor)  # in place; a killed peer is noticed here: this raises
    state.optimizer.step()
    return loss.item()


class StagedReplicas(Replicas):
    """Replicas that do what the chapter wants to show, at steps that it knows.

    Args:
        together: step -> how many replicas there must be before it; those that are there wait until it is so.
        fatal: in this step the process kills itself with SIGKILL in the middle of the sum; 0: in none.
    """

    def __init__(self, *args: Any, together: Mapping[int, int], fatal: int = 0) -> None:
        super().__init__(*args)
        self.together, self.fatal = together, fatal

    def begin_step(self) -> int:
        step = super().begin_step()
        while self.ranks != self.together.get(step + 1, self.ranks):
            super().all_reduce([])  # of nothing: only to learn whether another one waits, or has gone
            time.sleep(0.02)
            step = super().begin_step()
        return step

    def all_reduce(self, tensors: Iterable[torch.Tensor]) -> bool:
        if self.state.step + 1 == self.fatal:
            self.group.allreduce([next(iter(tensors))])  # it has begun to send
            os.kill(os.getpid(), signal.SIGKILL)
        return super().all_reduce(tensors)


def try_step(replicas: Replicas, images: torch.Tensor, labels: torch.Tensor) -> float | None:
    """One step of all replicas; returns the mean loss of the global batch. None: a replica was lost in it."""
    state = replicas.state
    own, size = state.sampler.batch(replicas.rank, replicas.ranks), len(state.sampler.global_batch())
    state.optimizer.zero_grad()
    loss = nn.functional.cross_entropy(state.model(images[own]), labels[own], reduction="sum") / size
    loss.backward()
    total = loss.detach().clone()
    if not replicas.all_reduce([*(p.grad for p in state.model.parameters()), total]):
        return None
    state.optimizer.step()
    state.commit(replicas.round)
    return total.item()


def train_replica(
    me: str,
    hosts: Sequence[str],
    limits: Limits,
    folder: str | None,
    steps: int,
    pause: float = 0.0,
    join: Callable[..., Replicas] = Replicas,
) -> dict[str, Any]:
    """The same run with fault tolerance by replica: one process, which nobody watches or starts again.

    Args:
        me, hosts: its own host, and those of all replicas.
        folder: of the journal; None: none is written.
        join: makes the ``Replicas``.
    """
    images, labels = load_digits()
    state, writer = new_state(len(labels)), JournalWriter(folder, me)
    replicas = join(me, hosts, limits, state)
    while replicas.begin_step() < steps:
        step, own = state.step + 1, state.sampler.batch(replicas.rank, replicas.ranks)
        writer.write("batch", step=step, round=replicas.round, samples=own.tolist())
        time.sleep(pause)
        if (loss := try_step(replicas, images, labels)) is None:
            writer.write("lost", step=step, round=replicas.round)
        else:
            writer.write("step", step=step, round=replicas.round, ranks=replicas.ranks, loss=loss)
    replicas.close()
    return {
        "step": state.step,
        "history": state.history,
        "model": state.model.state_dict(),
        "healed": replicas.healed,
    }
