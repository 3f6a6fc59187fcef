"""One run: a method, a learning rate and a seed, trained on ranks, judged, and its bytes counted."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from course_lib.comparison.compression.methods import METHODS, halves
from course_lib.comparison.compression.predicted import sent_in_run
from course_lib.comparison.compression.tasks import MODELS, Task
from course_lib.compression.asynchronous import AsynchronousAveraging
from course_lib.compression.local_sgd import average
from course_lib.data.sharding import batches
from course_lib.one_device.loop import cross_entropy, train
from course_lib.one_device.schedule import warmed_up
from course_lib.runtime.world import World
from simulator.predict.traffic import ddp_traffic

FIRST, LAST = 5, 8  # losses of the first steps are kept one by one, and the mean of those of the last


@dataclass(frozen=True)
class Setting:
    """All that decides a run's result; a finished run is known by it, and is not computed again.

    Attributes:
        batch: samples of a step, of all ranks together.
    """

    task: str
    method: str
    lr: float
    seed: int
    steps: int
    batch: int = 16
    ranks: int = 4


def train_one(world: World, setting: Setting, task: Task) -> dict[str, Any]:
    """Train as the setting says: the losses on both held-out parts, in nats, and the bytes that rank 0 sent.

    Adam; the learning rate rises over the first tenth of the steps, then falls to zero. The losses are those of the
    mean of all ranks' weights after the last step; a loss that is not finite is ``inf``.
    """
    check_batch(setting, task)
    return asdict(setting) | world.run(on_rank, (setting, task))[0] | {"data": task.digest}


def on_rank(setting: Setting, task: Task, stop_after: int | None = None) -> dict[str, Any]:
    """What every rank does; the losses on the held-out parts are computed on rank 0 alone, at the run's end.

    Args:
        stop_after: take so many steps and not all, at the learning rates of the whole run.
    """
    torch.set_num_threads(1)  # the ranks share the cores
    torch.manual_seed(setting.seed)
    plain = MODELS[setting.task]()
    model, optimizer = METHODS[setting.method].build(plain, setting.lr, setting.steps)
    schedule = LambdaLR(optimizer, lambda done: warmed_up(done, setting.steps))
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    own = batches(task.train, setting.batch, rank=dist.get_rank(), ranks=setting.ranks, seed=setting.seed)
    losses = torch.tensor(train(model, as_numbers(own), optimizer, steps=stop_after or setting.steps))
    if isinstance(optimizer, AsynchronousAveraging):
        optimizer.finish()
    dist.all_reduce(losses)
    losses /= setting.ranks  # each rank's are those of its own samples
    mean = copy.deepcopy(plain)
    nn.utils.vector_to_parameters(average(plain.parameters(), None), mean.parameters())
    first = dist.get_rank() == 0 and stop_after is None
    return {
        "validation": held_out(mean, task.validation) if first else None,
        "test": held_out(mean, task.test) if first else None,
        "first_losses": losses[:FIRST].tolist(),
        "last_loss": losses[-LAST:].mean().item(),
        "parameters": sum(parameter.numel() for parameter in plain.parameters()),
        "sent": sent(setting, plain, optimizer),
    }


def check_batch(setting: Setting, task: Task) -> None:
    """Raise a ValueError unless each rank gets as many samples of a step, and there are enough."""
    if setting.batch % setting.ranks:
        raise ValueError(f"batch is {setting.batch}; give a multiple of the {setting.ranks} ranks.")
    if setting.batch > len(task.train[1]):
        raise ValueError(f"batch is {setting.batch}; the training part has {len(task.train[1])} samples.")


def sent(setting: Setting, model: nn.Module, optimizer: Optimizer) -> float:
    """The bytes that rank 0 sent in the run, by the closed forms; asynchronous averages are counted as they come."""
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    fragments = [sum(parameter.numel() for parameter in half) for half in halves(model)]
    found = sent_in_run(setting.method, shapes, fragments, setting.ranks, setting.steps)
    if found is None:  # one more element counts the ranks that have finished
        found = optimizer.rounds * ddp_traffic([sum(map(math.prod, shapes)) + 1], setting.ranks).sent
    return found


def as_numbers(drawn: Iterator[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    """Bytes as int64, which an embedding takes; other tensors as they are."""
    for batch in drawn:
        yield tuple(tensor.long() if tensor.dtype == torch.uint8 else tensor for tensor in batch)


@torch.no_grad()
def held_out(model: nn.Module, part: tuple[Tensor, Tensor], batch_size: int = 128) -> float:
    """The mean loss of a part, in nats; ``inf`` if it is not a number."""
    model.eval()
    total = 0.0
    for inputs, targets in as_numbers(zip(*(tensor.split(batch_size) for tensor in part), strict=True)):
        total += cross_entropy(model(inputs), targets).item() * len(targets)
    loss = total / len(part[1])
    return loss if math.isfinite(loss) else math.inf
