"""One run: a method, a start, a learning rate and a seed, trained and measured."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from course_lib.comparison.finetuning.methods import METHODS
from course_lib.comparison.finetuning.predicted import predicted_memory
from course_lib.data.finetuning_tasks import Part, Task
from course_lib.data.sharding import batches_of_like_length
from course_lib.finetuning.freeze import count_parameters
from course_lib.models.bert import Bert, BertClassifier
from course_lib.observe.ledgers.memory import record_memory
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.schedule import warmed_up

CATEGORIES = ("parameters", "gradients", "optimizer_states", "activations", "buffers")


@dataclass(frozen=True)
class Setting:
    """All that decides a run's result; a finished run is known by it, and is not computed again.

    Attributes:
        lr: the learning rate; the probe has C there, the inverse of its regularisation.
        samples: at most so many of each part; None: all.
        matmul: how exact matrix products are, as ``torch.set_float32_matmul_precision`` names it. ``"medium"``
            rounds their inputs to bf16 and adds up in fp32; all that is kept stays in fp32.
    """

    task: str
    model: str
    method: str
    start: str
    lr: float
    seed: int
    steps: int
    batch: int = 32
    samples: int | None = None
    device: str = "cpu"
    matmul: str = "highest"


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """``torch.set_float32_matmul_precision`` for a while."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def train_one(setting: Setting, bert: Bert, task: Task, on_step: Callable[[], None] = lambda: None) -> dict:
    """Train a copy of ``bert`` as the setting says: accuracies, parameters, memory, seconds a step.

    AdamW without weight decay; the learning rate rises over the first tenth of the steps, then falls to zero.
    Batches hold sentences of like length. The validation and the test accuracy are those after the last step.
    """
    with matmul_precision(setting.matmul):
        return _train_one(setting, bert, task, on_step)


def _train_one(setting: Setting, bert: Bert, task: Task, on_step: Callable[[], None]) -> dict:
    model, optimizer = prepared(setting, bert, len(task.classes))
    schedule = LambdaLR(optimizer, lambda done: warmed_up(done, setting.steps))
    seconds, losses = [], []
    lengths = task.train.mask.sum(1)
    drawn = batches_of_like_length(task.train, lengths, setting.batch, seed=setting.seed)
    for batch in islice(drawn, setting.steps):
        begun = time.perf_counter()
        losses.append(
            step(model, optimizer, trimmed(batch, setting.device)).item()
        )  # .item() waits for a GPU
        seconds.append(time.perf_counter() - begun)
        schedule.step()
        on_step()
    count, measured_on = count_parameters(model), trimmed(task.train.first(setting.batch))[0].shape
    return {
        **asdict(setting),
        "validation": evaluate(model, task.validation, setting.device),
        "test": evaluate(model, task.test, setting.device),
        "last_loss": statistics.mean(losses[-10:]),
        "trainable": count.trainable,
        "total": count.total,
        "predicted_memory": predicted_memory(
            setting.method, count, bert.config, *measured_on, setting.device
        ),
        "memory": peak_memory(model, optimizer, task.train.first(setting.batch), setting.device),
        "seconds_per_step": statistics.median(
            seconds[1:] or seconds
        ),  # the first makes the optimizer's states
    }


def prepared(setting: Setting, bert: Bert, num_classes: int) -> tuple[BertClassifier, Optimizer]:
    """An adapted copy of ``bert`` on the setting's device, and the optimizer of what is trained in it."""
    torch.manual_seed(setting.seed)
    model = BertClassifier(copy.deepcopy(bert), num_classes)
    METHODS[setting.method].adapt(model, setting.start)
    model.to(setting.device).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, AdamW(
        trained, lr=setting.lr, weight_decay=0, fused=True
    )  # fused: one pass over each tensor


def step(model: BertClassifier, optimizer: Optimizer, batch: tuple[Tensor, ...]) -> Tensor:
    """One update; returns the loss, as it was before."""
    *inputs, labels = batch
    optimizer.zero_grad()
    loss = cross_entropy(model(*inputs), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def trimmed(batch: tuple[Tensor, ...], device: str = "cpu") -> tuple[Tensor, ...]:
    """A batch on the device, without the positions that are padding in all of its samples."""
    tokens, mask, labels = batch
    longest = int(mask.sum(1).max())
    return tokens[:, :longest].to(device), mask[:, :longest].to(device), labels.to(device)


@torch.no_grad()
def evaluate(model: BertClassifier, part: Part, device: str = "cpu", batch_size: int = 128) -> float:
    """The share of the samples, from 0 to 1, whose largest logit is the label. Short texts go together."""
    model.eval()
    right = 0
    for chosen in part.mask.sum(1).argsort().split(batch_size):
        *inputs, labels = trimmed(tuple(tensor[chosen] for tensor in part), device)
        right += (model(*inputs).argmax(-1) == labels).sum().item()
    model.train()
    return right / len(part.labels)


def peak_memory(
    model: BertClassifier, optimizer: Optimizer, part: Part, device: str = "cpu"
) -> dict[str, float]:
    """One more step under the ledger: the most bytes of each category, and of all together at one moment."""
    batch = trimmed(tuple(part), device)
    with record_memory(model, optimizer) as log:
        step(model, optimizer, batch)
    largest = {name: max(getattr(held, name) for held in log.held) for name in CATEGORIES}
    return {**largest, "peak": log.peak.total}
