"""From a job to ranks that do it, and back: the processes, what they tell, and how they end."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import Any

import click
import torch
import torch.distributed as dist
from torch import nn

from course_lib.checkpoints.saves import DiskFull, newest_first
from course_lib.finetuning.sites import root_of
from course_lib.models.bart import Bart
from course_lib.models.experts import sparse_layers
from course_lib.models.llama import DecoderModel
from course_lib.observe.device import device_name
from course_lib.observe.torch_trace import LEAST
from course_lib.parallelize import mesh_axes
from course_lib.parallelize.checks import (
    check_placement,
    plan_to_check,
)
from course_lib.parallelize.refusals import refuse
from course_lib.parallelize.shape import model_shape
from course_lib.runtime import RankError, launch
from course_lib.runtime.peers import lost_a_peer
from course_lib.train.job import Job
from course_lib.train.lines import listening
from course_lib.train.report import Report
from course_lib.train.run import train
from course_lib.train.terminals import meet, started_by_hand
from simulator.cli.options import flag
from simulator.inputs.hardware import Hardware
from simulator.inputs.known_devices import find_device
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.planner.plan_text import plan_text


def checked_job(plan: Plan, settings: dict[str, Any], precision_given: bool) -> Job:
    """The job, if it can be done.

    Raises:
        ValueError: the plan does not fit the model, the number of processes that torchrun has started, or what
            ``parallelize`` runs; there is nothing to resume.
    """
    if not precision_given and not torch.cuda.is_available():
        plan = replace(plan, precision="fp32")
    job = Job(plan=plan, **settings)
    if job.opened is not None:
        job.opened.check_words(job.task)
    refuse(plan, job.placement, job.compression)
    plan_to_check(plan, job.placement).check(shape_to_check(job))
    with torch.device("meta"):
        model = job.tuned(job.make_model())
    for name in ("balance_loss", "capacity_factor"):
        if getattr(job, name) is not None and not sparse_layers(model):
            raise ValueError(
                f"{flag(name)} is for models with experts, and {job.model} has none: leave it out"
            )
    check_length(model, job.positions)
    refuse(plan, job.placement, job.compression, model)
    if job.placement is not None:
        check_placement(model, plan, job.placement)
    if dist.is_torchelastic_launched() and (started := int(os.environ["WORLD_SIZE"])) != plan.ranks:
        raise ValueError(f"this plan is for {plan.ranks} ranks, and torchrun has started {started}")
    if job.profile is not None and job.steps < LEAST:
        raise ValueError(
            f"--profile needs at least {LEAST} --steps, not {job.steps}: the first and the last are left out"
        )
    if job.resume and not newest_first(job.checkpoint):
        raise ValueError(f"{job.checkpoint} holds no complete checkpoint to resume from")
    return job


def check_length(model: nn.Module, tokens: int) -> None:
    """Raise a ValueError if the model has fewer positions than a sample has tokens, virtual ones with them."""
    decoder = next((module for module in model.modules() if isinstance(module, DecoderModel)), None)
    if decoder is not None:  # with experts, too, which fine-tuning has no table for
        most = decoder.max_length
    else:
        root, sites = root_of(model)
        most = sites.most(root)
    if tokens > most:
        raise ValueError(
            f"sequence, with virtual tokens, must be at most the model's {most} positions, not {tokens}"
        )


def shape_of(job: Job) -> ModelShape | None:
    """None: the simulator knows no model with an encoder and a decoder."""
    with torch.device("meta"):
        return model_shape(job.make_model(), job.sequence)


def shape_to_check(job: Job) -> ModelShape:
    """What a plan must fit: for BART, too, whose layers a pipeline takes one after the other."""
    if (shape := shape_of(job)) is not None:
        return shape
    with torch.device("meta"):
        c = next(m for m in job.make_model().modules() if isinstance(m, Bart)).config
    sizes = {"hidden": c.d_model, "heads": c.encoder_attention_heads, "vocab": c.vocab_size}
    return ModelShape(c.encoder_layers + c.decoder_layers, **sizes, sequence=job.sequence)


def start(job: Job, hardware: Hardware | None, *, as_json: bool, log_every: int | None) -> int:
    """Run the job on ranks and print how it goes; returns the exit code."""
    name = hardware.name if hardware else device_name()
    hardware = hardware or (find_device(name) if name else None)
    if hardware is not None:
        job = replace(job, peak_flops=hardware.peak_flops * devices(job.plan))
    report = Report(job, as_json, log_every)
    mesh = mesh_axes(job.plan)
    if dist.is_torchelastic_launched():
        first = os.environ["RANK"] == "0"
        if first:
            report.begin(priced(job, name, hardware))
        alone = started_by_hand()
        try:
            if alone:
                meet(job.plan.ranks)
            ranks = launch(train, mesh=mesh, args=(job, report.step))
        except (ValueError, RuntimeError) as error:
            if not alone or not (isinstance(error, ValueError) or lost_a_peer(error)):
                raise
            click.echo(f"rank {os.environ['RANK']} stopped: {error}", err=True)
            return 2 if isinstance(error, ValueError) else 1
        if first:
            report.end(ranks)
        return 0
    report.begin(priced(job, name, hardware))
    try:
        with listening(report.step) as tell:
            ranks = launch(train, mesh=mesh, args=(job, tell, job.load_data()), timeout=None, quiet=True)
    except RankError as error:
        refused = isinstance(error.__cause__, ValueError) and not report.begun
        plain = refused or isinstance(error.__cause__, DiskFull)
        click.echo(f"Error: {error.__cause__}" if plain else str(error), err=True)
        return 2 if refused else 1
    report.end(ranks)
    return 0


def devices(plan: Plan) -> int:
    """GPUs, of which a rank has one; without them machines, whose cores the ranks share."""
    ranks_here = int(os.environ["LOCAL_WORLD_SIZE"]) if dist.is_torchelastic_launched() else plan.ranks
    machines = max(1, plan.ranks // ranks_here)
    return machines * (min(ranks_here, torch.cuda.device_count()) or 1)


def priced(job: Job, device: str | None, hardware: Hardware | None = None) -> str | None:
    """The command that predicts this run; None: the simulator has no price for such a job, or for fp8 on a device that
    has no 8-bit arithmetic."""
    if job.plan.precision == "fp8" and hardware is not None and not hardware.fp8_flops:
        return None
    shape = shape_of(job)
    if shape is None or job.tuning["method"] != "full" or job.placement or job.compression:
        return None
    if (job.capacity_factor or 1) < 1:  # in balance, which is what is priced, a larger one drops nothing
        return None
    words = ["python -m simulator step"]
    for field in fields(ModelShape):
        value, given = getattr(shape, field.name), field.name
        plain = {"kv_heads": shape.heads, "ffn": 4 * shape.hidden, "head_dim": shape.hidden // shape.heads}
        if value is None or value == plain.get(given, field.default):
            continue
        if isinstance(value, bool):
            words.append(
                "--untied" if given == "tied" else flag(given) if value else f"--no-{flag(given)[2:]}"
            )
        else:
            words.append(f"{flag(given)} {value}")
    line = plan_text(job.plan, ["precision", "micro_batch"])
    words += [f"--plan {line}", f"--global-batch {job.plan.global_batch}", f"--gpu {device or 'NAME'}"]
    return " ".join(words)
