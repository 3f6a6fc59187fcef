"""Which backend ranks talk through, and on which device each of them computes."""

from __future__ import annotations

import torch

BACKENDS = ("gloo", "nccl")
# NCCL carries the GPUs' tensors; small tensors that live on the CPU still travel, by Gloo.
WITH_CPU = {"nccl": "cpu:gloo,cuda:nccl"}

_device: torch.device | None = None


def choose_backend(ranks_here: int, backend: str | None = None) -> str:
    """NCCL where every rank of this machine has a GPU of its own, else Gloo.

    NCCL refuses two ranks on one GPU; Gloo lets any number of them share it, and needs none.
    """
    if backend is None:
        return "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= ranks_here else "gloo"
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, or None to choose; not {backend!r}")
    if backend == "nccl" and (gpus := torch.cuda.device_count()) < ranks_here:
        raise ValueError(
            f"nccl needs a GPU for each of the {ranks_here} ranks, and here are {gpus}: use gloo"
        )
    return backend


def set_device(local_rank: int) -> torch.device:
    """Give this process its device: a GPU (shared in turn when there are fewer than ranks), else the CPU."""
    global _device
    if torch.cuda.is_available():
        _device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(_device)
    else:
        _device = torch.device("cpu")
    return _device


def current_device() -> torch.device:
    """Where this rank computes; outside of ranks, the first GPU if there is one, else the CPU."""
    if _device is not None:
        return _device
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
