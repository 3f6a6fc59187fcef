"""Which backend connects the ranks, and on which device each of them computes."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

BACKENDS = ("gloo", "nccl")
# NCCL sends tensors that are on GPUs; those on the CPU go through Gloo.
WITH_CPU = {"nccl": "cpu:gloo,cuda:nccl"}

_device: torch.device | None = None


def choose_backend(ranks_here: int, backend: str | None = None) -> str:
    """NCCL where every rank of this machine has a GPU of its own, else Gloo.

    NCCL refuses two ranks on one GPU. Gloo lets any number of ranks share a GPU, and works without one.

    Raises:
        ValueError: an unknown backend, or NCCL with fewer GPUs than ranks.
    """
    if backend is None:
        return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= ranks_here else "gloo"
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, or None to choose; not {backend!r}")
    if backend == "nccl" and (gpus := torch.cuda.device_count()) < ranks_here:
        raise ValueError(
            f"nccl needs a GPU for each of the {ranks_here} ranks, but this machine has {gpus}: use gloo"
        )
    return backend


def set_device(local_rank: int) -> torch.device:
    """Give this process its device: the GPU of this number (modulo the number of GPUs), else the CPU."""
    global _device
    if torch.cuda.is_available():
        _device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(_device)
    else:
        _device = torch.device("cpu")
    return _device


def current_device() -> torch.device:
    """Where this rank computes. Outside of ranks: the GPU that ``torch.cuda.set_device`` chose, else the CPU.

    A process that torchrun started has the GPU of its LOCAL_RANK, also if it never calls ``launch``.
    """
    if _device is not None:
        return _device
    if dist.is_torchelastic_launched():
        return set_device(int(os.environ["LOCAL_RANK"]))
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
