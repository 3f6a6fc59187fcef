"""What every rank does: train a rung, and watch its last two steps."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import getgeneratorlocals, unwrap
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from course_lib.data.docs import corpus_tokens, language_windows
from course_lib.data.sharding import batches
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.memory import record_memory
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import current_device
from simulator.ledgers.memory import MemoryBreakdown
from simulator.ledgers.traffic import Traffic

Train = Callable[..., Iterator[tuple[Tensor | None, Tensor]]]
MakeOptimizer = Callable[..., Optimizer]
SEQUENCE, LR, WATCHED = 64, 1e-3, 2  # the last two steps are watched: one for the time, one for bytes


class Run(NamedTuple):
    """What rank 0 knows of a rung, or of one device."""

    losses: list[float]  # of the whole batch, a number a step
    norms: list[float]
    seconds: list[float]  # of each step that was not watched
    messages: float = 0.0  # seconds in which one was on its way
    peak: float = 0.0  # bytes held at most
    memory: MemoryBreakdown = MemoryBreakdown()  # of each kind the most, perhaps at different moments
    traffic: Traffic = Traffic()
    # Of each layer with experts, in the last step: copies that each rank has sent to each expert, and wanted to send.
    routed: Sequence[list[list[int]]] = ()
    load: Sequence[list[float]] = ()


def help_of(function: Callable) -> str:
    """The docstring of the function's file, for click: lines that are indented there, such as tables, stay lines."""
    return re.sub(r"\n\n(?= )", "\n\n\b\n", unwrap(function).__globals__["__doc__"])


def new_model() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(max_length=SEQUENCE))


def load_samples() -> list[Tensor]:
    """Texts, and for each byte the one that follows: two of (texts, 64), in 8 bits, since they travel to the ranks."""
    return [t.to(torch.uint8) for t in language_windows(corpus_tokens(), SEQUENCE)]


def run_all(
    train: Train,
    rungs: Mapping[str, Mapping[str, Any]],
    samples: list[Tensor],
    steps: int,
    batch: int,
    share: bool,
    alone: Train | Mapping[str, Any],
) -> dict[str, tuple[Run, Run]] | None:
    """The runs by name, each with that of one device. None on the other ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    place = {"rank": rank, "ranks": ranks} if share else {}
    own = list(chosen(samples, batch, steps, **place))  # now: reading all texts is no part of a step
    found = {name: run(partial(train, **rung), own, steps) for name, rung in rungs.items()}
    compared: dict[tuple, Run] = {}
    for name, rung in rungs.items() if rank == 0 else ():
        settings = {**rung, **alone} if isinstance(alone, Mapping) else {}
        key = tuple(sorted(settings.items()))
        if key not in compared:  # rungs that differ only in what is sent
            one = partial(train, **settings) if isinstance(alone, Mapping) else alone
            compared[key] = run(one, chosen(samples, batch, steps), steps, alone=True)
        found[name] = found[name], compared[key]
    dist.barrier()
    return found if rank == 0 else None


def chosen(samples: list[Tensor], batch: int, steps: int, **place: int) -> Iterator[list[Tensor]]:
    """The inputs and targets of each step, on this rank's device."""
    for some in islice(batches(samples, batch, **place), steps):
        yield [t.to(current_device()).long() for t in some]


def one_device(
    model: nn.Module, batches: Iterator, make_optimizer: MakeOptimizer, loss_fn: Callable
) -> Iterator[tuple[Tensor, Tensor]]:
    """What every rung is compared with: the loop without ranks."""
    optimizer = make_optimizer(model.parameters())
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm


def run(
    train: Train,
    batches: Iterable,
    steps: int,
    alone: bool = False,
    model: nn.Module | None = None,
    lr: float = LR,
) -> Run:
    """Train, and watch the last two steps: when what was done, then what was held and sent."""
    model = new_model().to(current_device()) if model is None else model
    optimizers: list[Optimizer] = []

    def make_optimizer(parameters: Any, **settings: Any) -> Optimizer:
        optimizers.append(Adam(parameters, **{"lr": lr, **settings}))
        return optimizers[-1]

    training = train(model, batches, make_optimizer, cross_entropy)
    told, seconds, messages = [], [], 0.0
    for _ in range(steps - WATCHED):
        began = time.perf_counter()
        told.append(numbers(next(training)))
        seconds.append(time.perf_counter() - began)
    own = getgeneratorlocals(training).values()
    optimizers += [o for o in own if isinstance(o, Optimizer) and o not in optimizers]
    if not alone:
        with record_timeline() as log:
            told.append(numbers(next(training)))
        messages = gather_timeline(log).busy(0, "communication")
    with record_memory(with_shards(model, optimizers), *optimizers) as memory, record_traffic() as traffic:
        told.append(next(training))
    sent = traffic.traffic  # without what follows
    told[-1] = numbers(told[-1])
    told += [numbers(step) for step in training]  # it ends: what is done after the last step is done, too
    losses, norms = zip(*told, strict=True)
    losses = losses if alone else mean_over_ranks(losses)
    most = {kind: max(getattr(held, kind) for held in memory.held) for kind in memory.peak.as_dict()}
    held = memory.peak.total, MemoryBreakdown(**most)
    layers = [module for module in model.modules() if hasattr(module, "kept")]
    routed = [layer.kept.tolist() for layer in layers], [layer.load.tolist() for layer in layers]
    return Run(losses, list(norms), seconds, messages, *held, sent, *routed)


def with_shards(model: nn.Module, optimizers: list[Optimizer]) -> nn.Module:
    """A module of the model's parameters and the optimizers', so that shards count as parameters, too."""
    whole = nn.Module()
    whole.model = model
    shards = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    whole.shards = nn.ParameterList(shards)
    return whole


def numbers(step: tuple[Tensor | None, Tensor]) -> tuple[float, float]:
    """Reading them waits for a GPU, so that the time of a step is the time of its work."""
    loss, norm = step
    return tuple(float("nan") if number is None else float(number) for number in (loss, norm))


def mean_over_ranks(losses: list[float]) -> list[float]:
    """Of the ranks that know them."""
    every = torch.empty(dist.get_world_size(), len(losses), dtype=torch.float64, device=current_device())
    dist.all_gather(list(every), every.new_tensor(losses))
    return every.nanmean(0).tolist()
