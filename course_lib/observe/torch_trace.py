"""A trace of some steps of every rank by PyTorch's profiler, which ``python -m simulator compare`` reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.profiler import ProfilerActivity, profile, schedule

MOST = 3  # steps in a trace
LEAST = (
    4  # steps of a run: one that makes what later ones use again, one that starts the profiler, and the last
)


@contextmanager
def record_torch_trace(folder: Path | None, steps: int) -> Iterator[Callable[[], None]]:
    """Call what comes out of it after each of ``steps`` steps: of the last but one and those before it are traces.

    Each rank writes ``rank0.json.gz``, and what its Flight Recorder knows, ``rank0.flight.json``: Gloo's collectives
    do not say in a trace which group they belong to. Without a folder, or with fewer than 4 steps, nothing is recorded.
    """
    if folder is None or steps < LEAST:
        yield lambda: None
        return
    folder.mkdir(parents=True, exist_ok=True)
    name, traced = f"rank{dist.get_rank()}", min(MOST, steps - LEAST + 1)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    when = schedule(wait=steps - traced - 2, warmup=1, active=traced, repeat=1)
    with profile(activities=activities, schedule=when) as recorder:
        yield recorder.step
    recorder.export_chrome_trace(str(folder / f"{name}.json.gz"))
    flight = getattr(c10d, "_dump_fr_trace_json", lambda: b"")()
    if flight:
        (folder / f"{name}.flight.json").write_bytes(flight if isinstance(flight, bytes) else flight.encode())
