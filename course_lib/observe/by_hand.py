"""What a file of ``course_lib/by_hand`` does as a program: it trains a small GPT on ranks, and prints its ledgers.

``python -m course_lib.by_hand.fsdp --ranks 4`` starts the ranks itself; under ``torchrun`` each process is one already.
Every rung trains the same model from the same seed on the same samples. So does one device, to which losses and norms
are compared. Time, memory and traffic are measured on rank 0 and stand beside the simulator's prediction.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import click
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from course_lib.data.docs import corpus_tokens, language_windows
from course_lib.data.sharding import batches
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.device import CPU, device_name
from course_lib.observe.ledgers.memory import record_memory
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.observe.show.compare import Row, compare
from course_lib.parallelize.shape import model_shape
from course_lib.runtime import RankError, current_device, launch
from course_lib.training.loop import cross_entropy
from simulator.inputs.known_devices import find_device
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.memory import MemoryBreakdown
from simulator.ledgers.traffic import Traffic
from simulator.predict.memory import plan_memory
from simulator.predict.step import step_cost
from simulator.predict.traffic import plan_traffic

Train = Callable[..., Iterator[tuple[Tensor | None, Tensor]]]
MakeOptimizer = Callable[..., Optimizer]
SEQUENCE, LR, WATCHED = 64, 1e-3, 2  # the last two steps are watched: one for the time, one for bytes


class Run(NamedTuple):
    """What rank 0 knows of a rung, or of one device."""

    losses: list[float]  # of the whole batch, a number a step
    norms: list[float]
    seconds: float  # of a step: the median, without the first
    messages: float = 0.0  # seconds in which one was on its way
    peak: float = 0.0  # bytes held at most
    memory: MemoryBreakdown = MemoryBreakdown()  # of each kind the most, perhaps at different moments
    traffic: Traffic = Traffic()


def main(
    train: Train,
    rungs: Mapping[str, Mapping[str, Any]],
    *,
    ranks: int = 4,
    same_samples: bool = False,
    traffic: Callable[[str, nn.Module, int], Traffic] | None = None,
    **plan: Any,
) -> None:
    """The command line of a file: ``--ranks``, ``--steps``, ``--batch``.

    Args:
        train: ``train(model, batches, make_optimizer, loss_fn, **rung)`` yields ``(loss, gradient norm)`` of each step.
            ``make_optimizer(parameters)`` makes the optimizer. A rank that does not know the loss yields None for it.
        rungs: the name of each rung, and what ``train`` is given for it.
        ranks: how many by default; under torchrun, as many as it has started.
        same_samples: all ranks see the whole batch, as in tensor parallelism; otherwise each has its own part.
        traffic: what a rank sends in a step: ``traffic(rung, model, ranks)``, where no plan says it.
        plan: of the simulator, such as ``zero=3``, or with a dict a value for each rung: what is predicted. The ranks
            are its ``dp``, unless ``tp``, ``pp`` or ``cp`` is given as ``None``: then they are that axis.
    """
    axis = next((name for name in ("tp", "pp", "cp") if name in plan and plan[name] is None), "dp")
    started = int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else None

    @click.command(help=train.__globals__["__doc__"], context_settings={"show_default": True})
    @click.option("--ranks", type=click.IntRange(1), default=started or ranks, help="Processes to train on.")
    @click.option(
        "--steps", type=click.IntRange(WATCHED + 2), default=10, help="Training steps of each rung."
    )
    @click.option(
        "--batch", type=click.IntRange(1), default=24, help="Texts in a step, on all ranks together."
    )
    def command(ranks: int, steps: int, batch: int) -> None:
        own = batch if same_samples else batch / ranks
        if own != int(own):
            raise click.UsageError(f"--batch must be a multiple of the {ranks} ranks, not {batch}")
        if started not in (None, ranks):
            raise click.UsageError(f"torchrun has started {started} ranks: leave --ranks out")
        try:
            shape = model_shape(new_model(), SEQUENCE)
            plans = {name: plan_of(name, plan, **{axis: ranks}, micro_batch=int(own)) for name in rungs}
            for planned in plans.values():
                planned.check(shape)
            samples = [t.to(torch.uint8) for t in language_windows(corpus_tokens(), SEQUENCE)]
            args = (train, rungs, samples, steps, batch, not same_samples)
            found = launch(run_all, ranks, args=args, timeout=None, quiet=True)[0]
        except (ValueError, RankError) as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(2 if isinstance(error, ValueError) else 1)
        if os.environ.get("RANK", "0") == "0":
            report(found, shape, plans, ranks, batch, traffic)

    command()


def plan_of(rung: str, plan: Mapping[str, Any], **more: int) -> Plan:
    chosen = {name: value[rung] if isinstance(value, dict) else value for name, value in plan.items()}
    return Plan(**{**chosen, **more}, precision="fp32", attention="flash")


def new_model() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(max_length=SEQUENCE))


# ---- on every rank ----------------------------------------------------------------------------------------


def run_all(
    train: Train,
    rungs: Mapping[str, Mapping[str, Any]],
    samples: list[Tensor],
    steps: int,
    batch: int,
    share: bool,
) -> dict[str, Run] | None:
    """The runs by name, and that of one device as ``""``. None on the other ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    place = {"rank": rank, "ranks": ranks} if share else {}

    def chosen(**place: int) -> Iterator[list[Tensor]]:
        device = current_device()
        return ([t.to(device).long() for t in b] for b in islice(batches(samples, batch, **place), steps))

    found = {name: run(partial(train, **rung), chosen(**place), steps) for name, rung in rungs.items()}
    if rank == 0:
        found[""] = run(one_device, chosen(), steps, alone=True)
    dist.barrier()
    return found if rank == 0 else None


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


def run(train: Train, batches: Iterator, steps: int, alone: bool = False) -> Run:
    """Train, and watch the last two steps: when what was done, then what was held and sent."""
    model = new_model().to(current_device())
    optimizers: list[Optimizer] = []

    def make_optimizer(parameters: Any, **settings: Any) -> Optimizer:
        optimizers.append(Adam(parameters, **{"lr": LR, **settings}))
        return optimizers[-1]

    training = train(model, batches, make_optimizer, cross_entropy)
    told, seconds, messages = [], [], 0.0
    for _ in range(steps - WATCHED):
        began = time.perf_counter()
        told.append(numbers(next(training)))
        seconds.append(time.perf_counter() - began)
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
    return Run(losses, list(norms), median(seconds[1:]), messages, *held, sent)


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
    return float("nan") if loss is None else float(loss), float(norm)


def mean_over_ranks(losses: list[float]) -> list[float]:
    """Of the ranks that know them."""
    every = torch.empty(dist.get_world_size(), len(losses), dtype=torch.float64, device=current_device())
    dist.all_gather(list(every), every.new_tensor(losses))
    return every.nanmean(0).tolist()


# ---- the report -------------------------------------------------------------------------------------------


def report(
    found: dict[str, Run],
    shape: ModelShape,
    plans: Mapping[str, Plan],
    ranks: int,
    batch: int,
    traffic: Callable[[str, nn.Module, int], Traffic] | None,
) -> None:
    alone = found.pop("")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(
        f"A GPT of {shape.parameters:,} parameters reads Python's documentation on {ranks} ranks ({device}): "
        f"{batch} texts of {SEQUENCE} bytes a step."
    )
    for name, run in found.items():
        plan = plans[name]
        sent = plan_traffic(shape, plan) if traffic is None else traffic(name, new_model(), ranks)
        memory = plan_memory(shape, plan)[0]
        computing, messages = predicted_seconds(shape, plan, sent, alone, batch)
        print(f"\n{name}")
        shown = [0, len(run.losses) // 2, len(run.losses) - 1]
        print("loss " + ", ".join(f"{run.losses[i]:.4f} in step {i + 1}" for i in shown))
        print(
            f"largest difference to one device: loss {furthest(run.losses, alone.losses):.1e}, "
            f"gradient norm {furthest(run.norms, alone.norms):.1e}"
        )
        rows = [
            Row("a step", None, computing + messages, run.seconds, unit="s"),
            Row("messages on their way", None, messages, run.messages, unit="s"),
            Row("held at most", None, memory.total, run.peak, unit="B"),
        ]
        for part, size in run.memory.as_dict().items():
            if size or getattr(memory, part):
                rows.append(Row(f"  {part.replace('_', ' ')}", None, getattr(memory, part), size, unit="B"))
        for row in (*run.traffic.rows, *sent.rows):
            kind, size = row.collective, f"sent by {row.collective}"
            if not any(r.name == size for r in rows):
                rows.append(Row(size, None, sent.of(kind).sent, run.traffic.of(kind).sent, unit="B"))
        print(compare(*rows))
    if (crowd := sharers(ranks)) > 1:
        print(f"\n{crowd:.3g} ranks share a core or a device: a message also waits until its receiver runs.")


def predicted_seconds(
    shape: ModelShape, plan: Plan, sent: Traffic, alone: Run, batch: int
) -> tuple[float, float]:
    """A step's seconds of computing, and of messages, which may travel beside it.

    How the parts of a step compare, the device's file knows; how fast this machine is, the run on one device says.
    """
    hardware = find_device(device_name() or CPU)
    one = step_cost(shape, Plan(micro_batch=batch, precision="fp32", attention="flash"), hardware)
    cost = step_cost(shape, plan, hardware)
    computing = cost.seconds - sum(cost.parts[f"{part}_parallel"] for part in ("data", "tensor", "context"))
    computing *= alone.seconds / one.seconds * sharers(plan.ranks)
    return computing, hardware.node.seconds(sent.sent, sent.calls)


def sharers(ranks: int) -> float:
    """How many ranks compute on one device, or on one core."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    return max(1.0, here / (torch.cuda.device_count() or os.cpu_count() or 1))


def furthest(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
