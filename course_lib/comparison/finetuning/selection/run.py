"""One run of the comparison: tune a copy of the task GPT on one task without an instruction, and count answers."""

from __future__ import annotations

import copy
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from course_lib.comparison.finetuning.selection.methods import METHODS
from course_lib.data.text_tasks import IGNORED, samples
from course_lib.finetuning.freeze import count_parameters
from course_lib.models.gpt import GPT
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.schedule import warmed_up


@dataclass(frozen=True)
class Setting:
    """All that decides a run's result; two runs with equal settings are one run."""

    task: str
    method: str
    lr: float
    seed: int
    steps: int
    batch: int


def train_one(setting: Setting, plain: GPT, on_step: Callable[[], None] = lambda: None) -> dict:
    """Tune a copy of ``plain`` as the setting says: shares of right answers, trained numbers, seconds a step.

    Adam without weight decay; the learning rate rises over the first tenth of the steps, then falls to zero.
    """
    torch.manual_seed(setting.seed)
    model = copy.deepcopy(plain).train()
    METHODS[setting.method].adapt(model, setting.seed)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=setting.lr)
    schedule = LambdaLR(optimizer, lambda done: warmed_up(done, setting.steps))
    seconds, losses, seeds = [], [], random.Random(setting.seed)
    for _ in range(setting.steps):
        tokens, targets = samples(setting.task, "train", setting.batch, seed=seeds.getrandbits(32))
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begun)
        on_step()
    count = count_parameters(model)
    return {
        **asdict(setting),
        "validation": right_answers(model, samples(setting.task, "validation")),
        "test": right_answers(model, samples(setting.task, "test")),
        "last_loss": statistics.mean(losses[-10:]),
        "trainable": count.trainable,
        "total": count.total,
        "seconds_per_step": statistics.median(seconds),
    }


@torch.no_grad()
def right_answers(model: nn.Module, lines: tuple[Tensor, Tensor]) -> float:
    """The share of the lines, from 0 to 1, whose whole answer the model would write.

    The likeliest token at each place of the right answer is the right one: then, and only then, does generation
    without chance write this answer. So one forward counts what generation would take many for.
    """
    tokens, targets = lines
    model.eval()
    likeliest = model(tokens).argmax(-1)
    return ((likeliest == targets) | (targets == IGNORED)).all(1).float().mean().item()
