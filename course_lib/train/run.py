"""What every rank does: make the model, apply the plan, train, save. Rank 0 tells how it goes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from itertools import islice
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from course_lib.checkpoints.manifest import new_run, read_save, save_name
from course_lib.checkpoints.saves import DiskFull
from course_lib.data.sharding import batches, split_range
from course_lib.observe.ledgers.expert_load import record_expert_load
from course_lib.observe.ledgers.memory import record_memory
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.observe.torch_trace import record_torch_trace
from course_lib.parallelize import (
    ParallelModel,
    latest_checkpoint,
    load_checkpoint,
    parallelize,
    save_checkpoint,
)
from course_lib.parallelize.shape import model_shape
from course_lib.train.job import Job
from course_lib.train.material.samples import Samples
from course_lib.train.material.score import accuracy
from simulator.predict.flops import model_flops

Tell = Callable[[dict[str, Any]], None]


def train(mesh: DeviceMesh, job: Job, tell: Tell, samples: Samples | None = None) -> dict[str, Any]:
    """Train on this rank. Returns what the last step held and sent here.

    Args:
        tell: called on rank 0 with each step's figures.
        samples: None: rank 0 reads them, and sends them to the others.
    """
    plain = job.make_model()
    flops = step_flops(job, plain)
    ways = {"placement": job.placement, "compression": job.compression}
    tuned = job.tuned(plain)
    model, optimizer = parallelize(tuned, job.plan, mesh, **ways, read=job.reader(tuned), lr=job.lr)
    samples = samples or same_everywhere(job)
    run, first = new_run(), resume(job, model, optimizer, tell) if job.resume else 0
    numbers = torch.arange(len(samples.tokens))
    chosen = batches((numbers,), job.plan.global_batch, seed=job.seed)
    ledgers: dict[str, Any] = {}
    with record_torch_trace(job.profile, job.steps - first) as done:
        for step, (rows,) in enumerate(islice(chosen, first, job.steps), first + 1):
            own = split_range(len(rows), model.data_rank, model.data_ranks)
            batch = [tensor[rows[own.start : own.stop]].long() for tensor in samples.tensors]
            last = step == job.steps
            began = time.perf_counter()
            with ExitStack() as stack:
                if last:  # counting costs time, so this step's is not told
                    memory = stack.enter_context(
                        record_memory(model.module, optimizer, device=mesh.device_type)
                    )
                    traffic = stack.enter_context(record_traffic())
                    load = stack.enter_context(record_expert_load(model.module))
                loss, norm = train_step(model, optimizer, batch, job.clip)
            if last:
                ledgers = ledgers_of(memory, traffic) | load
            seconds = None if last else time.perf_counter() - began
            if dist.get_rank() == 0:
                told = {
                    "step": step,
                    "loss": loss,
                    "grad_norm": norm,
                    "tokens": int(samples.tokens[rows].sum()),
                }
                tell(told | {"seconds": seconds, "flops": flops, "memory": memory_now()})
            if job.checkpoint and (last or (job.save_every and step % job.save_every == 0)):
                save(job, model, optimizer, step, run, tell)
            done()
    if samples.test is not None:
        ledgers["accuracy"] = accuracy(model, samples.test, job.plan.global_batch)
    if job.opened is not None:
        ledgers["weights_read"] = job.opened.folder.bytes_read
    return {"rank": dist.get_rank(), **place(mesh), **ledgers}


def step_flops(job: Job, plain: nn.Module) -> float | None:
    """By formula; None where it has none: two texts in one model, frozen parameters, or tokens that are dropped."""
    shape = model_shape(plain, job.sequence)
    if shape is None or job.tuning["method"] != "full" or job.capacity_factor is not None:
        return None
    return sum(model_flops(shape, job.plan.global_batch).values())


def train_step(
    model: ParallelModel, optimizer: Optimizer, batch: list[Tensor], clip: float
) -> tuple[float, float]:
    """The loop of one device, with forward and backward in one call."""
    optimizer.zero_grad()
    loss = model.forward_backward(*batch)
    norm = model.clip_grad_norm(clip)
    optimizer.step()
    return loss.item(), norm.item()


def same_everywhere(job: Job) -> Samples:
    """The data of rank 0 on all ranks: Python's documentation differs a little between machines."""
    sent: list[Any] = [job.load_data() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(sent, src=0)
    return sent[0]


def resume(job: Job, model: ParallelModel, optimizer: Optimizer, tell: Tell) -> int:
    """Take the newest checkpoint that is whole; returns the steps that it has behind it."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            return load_newest(job, model, optimizer)
        finally:
            for warning in warned if dist.get_rank() == 0 else ():
                tell({"note": f"{warning.message}"})


def load_newest(job: Job, model: ParallelModel, optimizer: Optimizer) -> int:
    folder = latest_checkpoint(job.checkpoint)
    if folder is None:
        raise ValueError(f"{job.checkpoint} holds no whole checkpoint to resume from")
    saved, here = read_save(folder).about["extra"], settings_of(job) | also_told(job)
    other = {
        key: f"{key} {saved[key]}, and here {value}"
        for key, value in here.items()
        if saved.get(key, value) != value
    }
    if refused := [other.pop(key) for key in settings_of(job) if key in other]:
        raise ValueError(
            f"{folder} was trained with {'; '.join(refused)}: the losses would not go on as they were"
        )
    load_checkpoint(folder, model, optimizer)
    if other and dist.get_rank() == 0:
        warnings.warn(f"{folder} was trained with {'; '.join(other.values())}", stacklevel=2)
    for group in optimizer.param_groups:
        group["lr"] = job.lr
    return saved["step"]


def settings_of(job: Job) -> dict[str, Any]:
    """What decides which samples come next, and what the weights are."""
    return {
        "model": job.model,
        "task": job.task,
        "tuning": job.tuning["method"],
        "seed": job.seed,
        "global_batch": job.plan.global_batch,
    }


def also_told(job: Job) -> dict[str, Any]:
    """With other values training may go on."""
    precision = job.plan.precision
    told = {"sequence": job.sequence, "lr": job.lr, "clip": job.clip, "precision": precision}
    experts = {"balance_loss": job.balance_loss, "capacity_factor": job.capacity_factor}
    return told | {name: value for name, value in experts.items() if value is not None}


def save(job: Job, model: ParallelModel, optimizer: Optimizer, step: int, run: str, tell: Tell) -> None:
    """On a full disk training goes on, and its next save may find room; the last one must."""
    settings = settings_of(job) | also_told(job)
    try:
        save_checkpoint(job.checkpoint / save_name(step, run), model, optimizer, step=step, **settings)
    except DiskFull as error:
        if step == job.steps:
            raise
        if dist.get_rank() == 0:
            tell({"note": f"{error}; training goes on"})


def ledgers_of(memory: Any, traffic: Any) -> dict[str, Any]:
    peak = memory.peak
    return {
        "peak_memory": memory.allocator_peak or peak.total,
        "memory": peak.as_dict(),
        "sent": traffic.traffic.sent,
        "traffic": [asdict(row) for row in traffic.traffic.rows],
    }


def place(mesh: DeviceMesh) -> dict[str, int]:
    return {axis: mesh[axis].get_local_rank() for axis in mesh.mesh_dim_names}


def memory_now() -> int:
    """On a GPU the most bytes that its allocator has given out so far; on the CPU those of this process."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    return psutil.Process().memory_info().rss
