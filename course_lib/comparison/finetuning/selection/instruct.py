"""How the task GPT was trained: every line begins with its instruction."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from course_lib.data.text_tasks import ASK, BEGIN, END, KNOWN, SPACES, draw_texts, encode
from course_lib.models.gpt import GPT
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.schedule import warmed_up


def train(model: GPT, optimizer: Optimizer, steps: int, batch: int, seed: int) -> Iterator[float]:
    """Each step's loss. The rate rises, then falls to zero; gradients are clipped to a norm of 1."""
    schedule = LambdaLR(optimizer, lambda done: warmed_up(done, steps))
    for tokens, targets in islice(mixed(batch, seed), steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens), targets)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()


def mixed(batch: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of all known tasks in turn, each line after its instruction and 0 to ``SPACES`` ends of lines."""
    draw, names = random.Random(seed), [*KNOWN]
    while True:
        texts = draw_texts("train", batch, draw)  # of Python and of words in turn
        tasks = [names[i // 2 % len(names)] for i in range(batch)]
        lines = [
            f"{END * draw.randint(0, SPACES)}{task}{BEGIN}{text}{ASK}"
            for task, text in zip(tasks, texts, strict=True)
        ]
        yield encode(lines, [KNOWN[task](text) for task, text in zip(tasks, texts, strict=True)])
