"""The command line of a file: ``--ranks``, ``--steps``, ``--batch``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import click
import torch.distributed as dist

from course_lib.observe.by_hand.report import report
from course_lib.observe.by_hand.run import (
    SEQUENCE,
    WATCHED,
    Train,
    help_of,
    load_samples,
    new_model,
    one_device,
    run_all,
)
from course_lib.parallelize.shape import model_shape
from course_lib.runtime import RankError, launch
from simulator.inputs.plan import Plan
from simulator.ledgers.traffic import Traffic


def main(
    train: Train,
    rungs: Mapping[str, Mapping[str, Any]],
    *,
    ranks: int = 4,
    most: int | None = None,
    same_samples: bool = False,
    traffic: Callable[..., Traffic] | None = None,
    alone: Train | Mapping[str, Any] = one_device,
    shape: Mapping[str, Any] | None = None,
    **plan: Any,
) -> None:
    """The command line of a file: ``--ranks``, ``--steps``, ``--batch``.

    Args:
        train: ``train(model, batches, make_optimizer, loss_fn, **rung)`` yields ``(loss, gradient norm)`` of each step.
            ``make_optimizer(parameters)`` makes the optimizer. A rank that does not know the loss yields None for it.
        rungs: the name of each rung, and what ``train`` is given for it.
        ranks: how many by default; under torchrun, as many as it has started.
        most: how many at most; 1: a technique of one device.
        same_samples: all ranks see the whole batch, as in tensor parallelism; otherwise each has its own part.
        traffic: what a rank sends in a step: ``traffic(rung, model, ranks, batch)``, where no plan says it. With
            experts it also gets ``routed``, as in ``Run``.
        alone: what one device does. A dict: ``train`` with these settings beside the rung's own.
        shape: what ``train`` makes of the model: fields of a ``ModelShape``.
        plan: of the simulator, such as ``zero=3``, or with a dict a value for each rung: what is predicted. The ranks
            are its ``dp``, unless ``tp``, ``pp`` or ``cp`` is given as ``None``: then they are that axis. With ``ep``
            as ``None`` they are both ``dp`` and ``ep``.
    """
    axis = next((name for name in ("tp", "pp", "cp") if name in plan and plan[name] is None), "dp")
    axes = (axis, "ep") if "ep" in plan else (axis,)
    started = int(os.environ["WORLD_SIZE"]) if dist.is_torchelastic_launched() else None

    @click.command(help=help_of(train), context_settings={"show_default": True})
    @click.option(
        "--ranks",
        type=click.IntRange(1, most),
        default=started or most or ranks,
        help="Processes to train on.",
    )
    @click.option(
        "--steps", type=click.IntRange(WATCHED + 2), default=10, help="Training steps of each rung."
    )
    @click.option(
        "--batch", type=click.IntRange(1), default=24, help="Texts in a step, on all ranks together."
    )
    def command(ranks: int, steps: int, batch: int) -> None:
        own = batch
        for parts, what in (
            (1 if same_samples else ranks, "ranks"),
            (plan.get("microbatches", 1), "microbatches"),
        ):
            if own % parts:
                raise click.UsageError(f"--batch must be a multiple of the {parts} {what}, not {batch}")
            own //= parts
        if started not in (None, ranks):
            raise click.UsageError(f"torchrun has started {started} ranks: leave --ranks out")
        try:
            model = replace(model_shape(new_model(), SEQUENCE), **(shape or {}))
            own_plan = {**dict.fromkeys(axes, ranks), "micro_batch": own}
            plans = {name: plan_of(name, plan, **own_plan) for name in rungs}
            for planned in plans.values():
                planned.check(model)
            args = (train, rungs, load_samples(), steps, batch, not same_samples, alone)
            found = launch(run_all, ranks, args=args, timeout=None, quiet=True)[0]
        except (ValueError, RankError) as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(2 if isinstance(error, ValueError) else 1)
        if os.environ.get("RANK", "0") == "0":
            report(found, model, plans, ranks, batch, traffic)

    command()


def plan_of(rung: str, plan: Mapping[str, Any], **more: int) -> Plan:
    chosen = {name: value[rung] if isinstance(value, dict) else value for name, value in plan.items()}
    return Plan(**{"attention": "flash", "precision": "fp32", **chosen, **more})
