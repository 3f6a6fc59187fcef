"""Chapter 20's runs: ranks train, some are killed, and each writes down what it did.

Every rank imports this module, so it imports little.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Member = Any  # by_hand's Elastic: a chapter hands it in, since nothing is built on that folder
Step = Callable[[Member, Tensor, Tensor], Tensor | None]
TRIES = 4  # of one step, then a rank gives up
PAUSE = 1 / 240  # seconds for each sample that a rank takes, since a real model is slower than this small one
START = 10.0  # seconds within which all processes have started
DAY = 86_400


def quarter(me: Member, samples: Tensor) -> Tensor:
    return samples.tensor_split(4)[me.name]


def dealt_anew(me: Member, samples: Tensor) -> Tensor:
    """All samples, by those who are there."""
    return samples.tensor_split(len(me.members))[me.rank]


def samples_taken(deal: Callable[[Member, Tensor], Tensor], members: Sequence[int], samples: int = 96) -> int:
    """How many different samples of a batch these members take together.

    Raises:
        Refused: one of them gets no samples.
    """
    from course_lib.chapters.refused import Refused

    taken: set[int] = set()
    for rank, name in enumerate(members):
        me = SimpleNamespace(name=name, rank=rank, members=list(members))
        try:
            taken |= set(deal(me, torch.arange(samples)).tolist())
        except Exception as error:
            raise Refused(
                f"the rank with me.name {name} and me.rank {rank} of {len(members)} members takes no samples: {error}"
            ) from None
    return len(taken)


def plain_step(
    me: Member, inputs: Tensor, targets: Tensor, deal: Callable[[Member, Tensor], Tensor] = quarter
) -> Tensor:
    """Data parallelism as in chapter 05, which knows nothing of losses of ranks."""
    scores = me.model(deal(me, inputs))
    loss = nn.functional.cross_entropy(scores, deal(me, targets), reduction="sum") / len(inputs)
    loss.backward()
    total = loss.detach()
    for t in [total, *(w.grad for w in me.model.parameters())]:
        dist.all_reduce(t)
    me.optimizer.step()
    me.optimizer.zero_grad()
    me.steps += 1
    return total


@dataclass
class Try:
    """A rank begins a step, meets the others again, or hangs. ``loss`` is None if the step was not made."""

    step: int
    start: float
    end: float
    ranks: int
    what: str  # "step", "meets", "left out" or "hangs"
    loss: float | None


Lives = list[list[Try]]  # of each rank, also of those that were killed


def run_ranks(
    kind: type,
    step: Step,
    kill: Mapping[int, int],
    ranks: int = 4,
    steps: int = 20,
    grace: float = 3.0,
    hang: Mapping[int, Mapping[int, float]] | None = None,
) -> Lives:
    """Each rank calls ``step(me, inputs, targets)`` until ``me.steps`` has grown, for each batch.

    Args:
        kind: ``Elastic`` of ``course_lib/by_hand/elastic.py``.
        kill: rank -> the step in which it gets SIGKILL.
        grace: seconds in which all who live must have noticed a loss.
        hang: rank -> step -> the seconds in which it does nothing before it begins this step.
    """
    from course_lib.observe.by_hand.elastic import those_left

    batches = new_batches(steps)
    with tempfile.TemporaryDirectory(prefix="lives-") as folder:
        those_left(_live, ranks, folder, kind, step, dict(kill), ranks, batches, grace, dict(hang or {}))
        files = [Path(folder, str(name)) for name in range(ranks)]
        lives = [[Try(*json.loads(line)) for line in file.read_text().splitlines()] for file in files]
    zero = min(one.start for life in lives for one in life)
    for one in (one for life in lives for one in life):
        one.start, one.end = one.start - zero, one.end - zero
    return lives


def _live(
    place: str,
    name: int,
    folder: str,
    kind: type,
    step: Step,
    kill: dict[int, int],
    ranks: int,
    batches: list[tuple[Tensor, Tensor]],
    grace: float,
    hang: Mapping[int, Mapping[int, float]],
) -> None:
    torch.set_num_threads(1)
    model, optimizer = new_model()
    model.register_forward_pre_hook(_pause)
    store = dist.FileStore(place, -1)
    me: Member = kind(model, optimizer, store, name, ranks, max(grace, START))
    with Path(folder, str(name)).open("w", buffering=1) as file:

        def write(begun: float, what: str, told: float | None = None) -> None:
            there = len(me.members)
            file.write(json.dumps([number + 1, begun, time.time(), there, what, told]) + "\n")

        me.meet()
        me.grace = grace
        for number, (inputs, targets) in enumerate(batches):
            tries = 0
            if seconds := hang.get(name, {}).get(number + 1):
                begun = time.time()
                time.sleep(seconds)
                write(begun, "hangs")
            while me.steps == number and tries < TRIES:
                if kill.get(name) == number + 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                begun, what, loss, tries = time.time(), "step" if me.together else "meets", None, tries + 1
                try:
                    loss = step(me, inputs, targets)
                except ConnectionError:  # those who met have not waited for it
                    what, tries = "left out", TRIES
                except RuntimeError:  # nobody caught it: this rank ends
                    tries = TRIES
                write(begun, what, None if loss is None else float(loss))
            if me.steps == number:
                break
        else:  # nobody leaves while others may still wait for its part of the last sum
            _wait_for(store, "done", len(me.members))
    me.part()


def _pause(_model: nn.Module, inputs: tuple[Tensor]) -> None:
    time.sleep(PAUSE * len(inputs[0]))


def _wait_for(store: Any, key: str, ranks: int) -> None:
    """Until so many have come here, or half a minute is over."""
    store.add(key, 1)
    until = time.monotonic() + 30
    while store.add(key, 0) < ranks and time.monotonic() < until:
        time.sleep(0.01)


def new_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Digits of 64 pixels; the same weights everywhere."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def new_batches(steps: int, size: int = 96) -> list[tuple[Tensor, Tensor]]:
    """The samples of all ranks, for each step."""
    from course_lib.data.digits import load_digits

    images, labels = load_digits()
    images = images.flatten(1)
    random = torch.Generator().manual_seed(0)
    chosen = [torch.randperm(len(labels), generator=random)[:size] for _ in range(steps)]
    return [(images[c], labels[c]) for c in chosen]


def one_device(steps: int = 20, lost_at: int | None = None) -> list[float]:
    """The losses of one process that nobody kills.

    Args:
        lost_at: from this step on the third quarter of each batch is left out, and the loss is the mean of the rest.
    """
    model, optimizer = new_model()
    losses = []
    for number, (inputs, targets) in enumerate(new_batches(steps), 1):
        if lost_at and number >= lost_at:
            inputs, targets = (
                torch.cat([q for i, q in enumerate(t.tensor_split(4)) if i != 2]) for t in (inputs, targets)
            )
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def steps_alike(losses: list[float], others: list[float], within: float = 1e-3) -> int:
    """How many steps at the beginning have the same loss."""
    pairs = enumerate(zip(losses, others, strict=False))
    return next((i for i, (a, b) in pairs if not abs(a - b) <= within), min(len(losses), len(others)))


def losses_of(lives: Lives) -> list[float]:
    """The loss of each step, as the rank that lived longest saw it."""
    longest = max(lives, key=lambda life: sum(one.loss is not None for one in life))
    return [one.loss for one in longest if one.loss is not None]


def lost_seconds(lives: Lives, length: float | None = None) -> float:
    """The seconds in which ranks fail, meet or are left out, of all that were not killed; a hang is not counted.

    Args:
        length: of the run, in seconds, if it should go on after what was recorded. Who is left out stays so.
    """
    end = length or max(one.end for life in lives for one in life)
    lost = 0.0
    for life in lives:
        lost += sum(one.end - one.start for one in life if one.loss is None and one.what != "hangs")
        if life[-1].what == "left out":
            lost += end - life[-1].end
    return lost


def lost_table(tried: Mapping[float, Lives]) -> str:
    """A line for each grace (in seconds), with what was lost, and would be in a day; the least is marked."""
    graces = sorted(tried)
    lost = [[lost_seconds(tried[grace], length) for grace in graces] for length in (None, DAY)]
    lines = [f"{'grace':>7} {'lost':>14} {'in a day':>14}"]
    for i, grace in enumerate(graces):
        cells = [("least " if column[i] == min(column) else "") + _duration(column[i]) for column in lost]
        lines.append(f"{grace:>5} s {cells[0]:>14} {cells[1]:>14}")
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 3600 else f"{seconds / 3600:.0f} hours"
