"""What the files on fine-tuning do as programs: a small GPT that has read some of Python's documentation learns to read
it in capitals, once with all of its parameters and then with each rung's few."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import click
import torch
from torch import Tensor

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.by_hand.run import (
    SEQUENCE,
    WATCHED,
    Run,
    Train,
    chosen,
    help_of,
    load_samples,
    one_device,
    run,
)
from course_lib.observe.show.compare import Row, compare
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import current_device
from simulator.inputs.plan import Plan
from simulator.predict.memory import model_states

LR, LR_OF_ALL = 3e-3, 1e-3  # few numbers near the pretrained model may move faster than all of them
ROOM = 16  # positions for virtual tokens


def main(train: Train, rungs: Mapping[str, Mapping[str, Any]]) -> None:
    """The command line: ``--ranks`` (1), ``--steps``, ``--batch``, and ``--pretrain`` for steps before."""

    @click.command(help=help_of(train), context_settings={"show_default": True})
    @click.option("--ranks", type=click.IntRange(1, 1), default=1, help="One device.")
    @click.option("--steps", type=click.IntRange(WATCHED + 2), default=40, help="Steps of fine-tuning.")
    @click.option("--batch", type=click.IntRange(1), default=24, help="Texts in a step.")
    @click.option("--pretrain", type=click.IntRange(WATCHED + 2), default=100, help="Steps before.")
    def command(ranks: int, steps: int, batch: int, pretrain: int) -> None:
        torch.manual_seed(0)
        model = GPT(GPTConfig.tiny(max_length=SEQUENCE + ROOM)).to(current_device())
        total, samples = sum(p.numel() for p in model.parameters()), load_samples()
        read = run(one_device, chosen(samples, batch, pretrain), pretrain, True, model)
        print(
            f"A GPT of {total:,} parameters has read Python's documentation: loss {read.losses[-1]:.4f} after "
            f"{pretrain} steps. It goes on in capitals."
        )
        with torch.no_grad():
            frozen = [float(cross_entropy(model(x), y)) for x, y in capitals(samples, batch, steps)]
        print(told("loss as it is", frozen))
        for name, rung in {"all parameters": None, **rungs}.items():
            torch.manual_seed(0)
            counts: list[int] = []
            learn, lr = (one_device, LR_OF_ALL) if rung is None else (partial(train, **rung), LR)
            texts, pretrained = capitals(samples, batch, steps), copy.deepcopy(model)
            found = run(partial(counted, learn, counts), texts, steps, True, pretrained, lr)
            show(name, found, counts[0], total)

    command()


def counted(
    train: Train, counts: list[int], model: Any, batches: Any, make_optimizer: Callable, loss_fn: Any
):
    """``train``, and how many numbers its optimizer updates."""

    def make(parameters: Any, **settings: Any) -> torch.optim.Optimizer:
        parameters = list(parameters)
        counts.append(sum(p.numel() for p in parameters))
        return make_optimizer(parameters, **settings)

    return train(model, batches, make, loss_fn)


def capitals(samples: list[Tensor], batch: int, steps: int) -> Iterator[list[Tensor]]:
    for some in chosen(samples, batch, steps):
        yield [torch.where((t >= ord("a")) & (t <= ord("z")), t - 32, t) for t in some]


def told(what: str, losses: list[float]) -> str:
    shown = [0, len(losses) // 2, len(losses) - 1]
    return f"{what} " + ", ".join(f"{losses[i]:.4f} in step {i + 1}" for i in shown)


def show(name: str, found: Run, trained: int, total: int) -> None:
    print(f"\n{name}: {trained:,} numbers are trained, {100 * trained / total:.2f} % of the model's")
    print(told("loss", found.losses))
    states = model_states(trained, Plan(precision="fp32"))
    print(
        compare(
            Row("gradients", None, states.gradients, found.memory.gradients, unit="B"),
            Row("optimizer states", None, states.optimizer_states, found.memory.optimizer_states, unit="B"),
            Row("activations", None, None, found.memory.activations, unit="B"),
            Row("held at most", None, None, found.peak, unit="B"),
        )
    )
