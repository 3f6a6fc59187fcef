"""What this machine can do: matrix products, memory-bound kernels, attention, the loss, and collectives, timed.

    python -m course_lib.observe.calibrate > measured.json

prints one JSON object; ``python -m simulator calibrate`` runs this and turns it into a hardware file. Progress goes to
standard error. The first GPU is measured if there is one, in bf16; else the CPU, in fp32, with the threads that
PyTorch takes by itself.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib.observe.neighbours import Neighbours
from course_lib.runtime.devices import current_device
from course_lib.runtime.launch import launch

CLOCK = time.perf_counter
PASSES = 3  # over everything, so that a moment in which the machine did something else harms one of them
MIN_SECONDS, MIN_REPEATS, MAX_REPEATS = 0.05, 3, 200  # of one measurement, in each pass
LONGEST = 0.2  # seconds of one product, from which on no larger one is tried
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
COLLECTIVE_BYTES = [2**power for power in (12, 16, 19, 22, 25)]
Row = dict[str, Any]  # what, ranks, size, seconds


def measure(show: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Time everything; about a minute on two cores.

    Returns:
        ``device`` (kind, name, bytes of memory, threads), ``precision``, ``itemsize``, ``torch`` and ``measured``: for
        each measurement what it was, how many ranks took part, its size (FLOP of a product and of attention, bytes of
        everything else) and its seconds. ``quiet`` says whether the figures can be trusted: ``others``, processors
        that other programs kept at work meanwhile, of ``cores``; ``threads``, how many this process wanted; and
        ``spread``, by which part of its time the median measurement took longer in its slowest pass than in its
        fastest.
    """
    device = current_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    fastest: dict[tuple, Row] = {}
    passes: dict[tuple, list[float]] = {}
    neighbours = Neighbours()
    for number in range(1, PASSES + 1):
        show(f"one rank, pass {number} of {PASSES}: the fastest counts")
        for row in _alone(device, dtype):
            if number == 1:
                show(described(row))
            _keep_fastest(fastest, row)
            passes.setdefault((row["what"], row["size"]), []).append(row["seconds"])
    quiet = {
        "others": neighbours.cores(),
        "cores": psutil.cpu_count() or 1,
        "threads": torch.get_num_threads() if device.type == "cpu" else 1,
        "spread": median(max(seconds) / min(seconds) - 1 for seconds in passes.values()),
    }
    rows = list(fastest.values())
    for ranks in _rank_counts(device):
        show(f"{ranks} ranks")
        for row in launch(_together, ranks, timeout=300, quiet=True)[0]:
            show(described(row))
            rows.append(row)
    return {
        "device": _describe(device),
        "precision": "bf16" if dtype == torch.bfloat16 else "fp32",
        "itemsize": dtype.itemsize,
        "torch": torch.__version__,
        "quiet": quiet,
        "measured": rows,
    }


def _keep_fastest(rows: dict[tuple, Row], row: Row) -> None:
    key = row["what"], row["ranks"], row["size"]
    if key not in rows or row["seconds"] < rows[key]["seconds"]:
        rows[key] = row


def described(row: Row) -> str:
    """One line of progress: ``matmul      1.07 GFLOP   5.2 ms     206 GFLOP/s``."""
    what = row["what"] if row["ranks"] == 1 else f"{row['what']}, {row['ranks']} ranks"
    took = f"{what:28}{row['seconds'] * 1e3:12.4g} ms"
    if row["what"] in ("launch", "overlap"):
        return took
    unit = "FLOP" if row["what"] in ("matmul", "attention", "attention backward") else "B"
    rate = row["size"] / row["seconds"]
    return f"{took}{row['size'] / 1e6:12.4g} M{unit:5}{rate / 1e9:10.4g} G{unit}/s"


# ---- one rank ---------------------------------------------------------------------------------------------


def _alone(device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    """One pass over all that one rank does alone."""
    with torch.no_grad():
        x = torch.ones(1, device=device)  # a kernel that does next to nothing: what is left is its start
        yield _row("launch", 0, _seconds(lambda: x + x, device))
        yield from _products(device, dtype)
        yield from _memory_kernels(device, dtype)
    yield from _attention(device, dtype)
    yield _loss(device)


def _products(device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    """Square products, each of twice the FLOP of the one before or more, until one takes long."""
    n, seconds = 32, 0.0
    while seconds < LONGEST and n <= (16384 if device.type == "cuda" else 2048):
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        seconds = _seconds(lambda a=a, b=b: a @ b, device)
        yield _row("matmul", 2.0 * n**3, seconds)
        n = n * 3 // 2 if n % 3 else n * 4 // 3  # 32, 48, 64, 96, 128 …


def _memory_kernels(device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    """An elementwise sum: two tensors are read, one is written."""
    largest = 2**28 if device.type == "cuda" else 2**24
    elements = 2**12
    while elements <= largest:
        x, y, z = (torch.ones(elements, device=device, dtype=dtype) for _ in range(3))
        seconds = _seconds(lambda x=x, y=y, z=z: torch.add(x, y, out=z), device)
        yield _row("memory", 3.0 * elements * dtype.itemsize, seconds)
        elements *= 4


def _attention(
    device: torch.device, dtype: torch.dtype, heads: int = 12, s: int = 1024, d: int = 64
) -> list[Row]:
    """Causal attention. The size counts half of the square for forward, and 2.5 times as much for backward."""
    q, k, v = (torch.randn(1, heads, s, d, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    flop = 4.0 * heads * s * s * d / 2

    def forward() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    gradient = torch.ones_like(forward())
    ahead = _seconds(forward, device)
    both = _seconds(lambda: torch.autograd.grad(forward(), (q, k, v), gradient), device)
    return [
        _row("attention", flop, ahead) | {"heads": heads, "queries": s, "keys": s, "width": d},
        _row("attention backward", 2.5 * flop, max(both - ahead, 0.1 * ahead)),
    ]


def _loss(device: torch.device, tokens: int = 512, vocab: int = 32000) -> Row:
    """Cross entropy of fp32 logits, forward and backward; its size is the bytes of the logits."""
    logits = torch.randn(tokens, vocab, device=device, requires_grad=True)
    targets = torch.arange(tokens, device=device)
    seconds = _seconds(lambda: torch.autograd.grad(F.cross_entropy(logits, targets), logits), device)
    return _row("loss", 4.0 * tokens * vocab, seconds)


# ---- several ranks ----------------------------------------------------------------------------------------


def _rank_counts(device: torch.device) -> list[int]:
    """2 and 4 processes on the CPU; on GPUs 2, 4, 8 … of them, none if there is only one."""
    if device.type != "cuda":
        return [2, 4]
    count = torch.cuda.device_count()
    return [ranks for ranks in (2, 4, 8, 16) if ranks <= count]


def _together() -> list[Row]:
    """On every rank: each collective over the sizes, which are bytes of the whole tensor."""
    device, p = current_device(), dist.get_world_size()
    fastest: dict[tuple, Row] = {}
    for _ in range(PASSES):
        for collective in COLLECTIVES:
            for size in COLLECTIVE_BYTES:
                _keep_fastest(fastest, _collective(collective, size, device, p))
    return [*fastest.values(), _beside(device, p)]


def _collective(collective: str, size: int, device: torch.device, p: int) -> Row:
    whole = size // 4 // p * p
    x, out = torch.zeros(whole, device=device), torch.zeros(whole, device=device)
    part = out[: whole // p].clone()
    calls = {
        "all-reduce": lambda: dist.all_reduce(x),
        "all-gather": lambda: dist.all_gather_into_tensor(out, part),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, x),
        "all-to-all": lambda: dist.all_to_all_single(out, x),
    }
    # Every rank must call equally often, so the number of repeats is fixed.
    return _row(
        collective, 4.0 * whole, _seconds(calls[collective], device, repeats=10 if size < 2**22 else 3), p
    )


def _beside(device: torch.device, p: int) -> Row:
    """A product alone, an all-reduce alone, both at once: the size is the part of the shorter one that cost nothing."""
    a, x = torch.randn(1024, 1024, device=device), torch.zeros(2**22, device=device)

    def both() -> None:
        work = dist.all_reduce(x, async_op=True)
        for _ in range(4):
            a @ a
        work.wait()

    def alone() -> None:
        for _ in range(4):
            a @ a

    times = [_seconds(f, device, repeats=7) for f in (alone, lambda: dist.all_reduce(x), both)]
    saved = (times[0] + times[1] - times[2]) / min(times[:2])
    return _row("overlap", min(max(saved, 0.0), 1.0), times[2], p)


# ---- measuring --------------------------------------------------------------------------------------------


def _seconds(work: Callable[[], object], device: torch.device, repeats: int | None = None) -> float:
    """The time of the fastest of several calls: what the machine can do, whatever else it is doing."""

    def once() -> float:
        _wait(device)
        start = CLOCK()
        work()
        _wait(device)
        return CLOCK() - start

    once()
    if repeats is None:
        repeats = int(min(max(MIN_SECONDS / max(once(), 1e-9), MIN_REPEATS), MAX_REPEATS))
    taken = [once() for _ in range(repeats)]
    return min(taken)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _row(what: str, size: float, seconds: float, ranks: int = 1) -> Row:
    return {"what": what, "ranks": ranks, "size": size, "seconds": seconds}


def _describe(device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        return {
            "kind": "cuda",
            "name": found.name,
            "memory": found.total_memory,
            "units": found.multi_processor_count,
            "count": torch.cuda.device_count(),
        }
    return {
        "kind": "cpu",
        "name": _processor(),
        "memory": psutil.virtual_memory().total,
        "units": torch.get_num_threads(),
        "count": psutil.cpu_count() or 1,
    }


def _processor() -> str:
    """The maker's name of the processor where the system tells it (Linux), else its architecture."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    found = measure(lambda line: print(line, file=sys.stderr, flush=True))
    print(json.dumps(found))
