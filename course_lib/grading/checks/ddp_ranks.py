"""What checks of chapter 19 run on ranks with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course_lib.grading.ranks import launch


def on_ranks(fn: Callable, ranks: int, args: tuple, timeout: float = 60.0) -> list[Any]:
    """On the CPU, wherever the course runs; the time limit ends what hangs."""
    return launch(fn, ranks, args=args, backend="gloo", timeout=timeout)


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
