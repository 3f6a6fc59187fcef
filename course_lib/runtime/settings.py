"""Settings of Python, NumPy and torch that one function may leave and the next would feel."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def _set_deterministic(value: bool) -> None:
    if torch.are_deterministic_algorithms_enabled() != value:  # to ask is quick; to set imports the compiler
        torch.use_deterministic_algorithms(value)


def _set_device(value: torch.device) -> None:
    if torch.get_default_device() != value:
        torch.set_default_device(value if value.type != "cpu" else None)


_SETTINGS: Any = (  # how each is asked for, and set
    (os.getcwd, os.chdir),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (random.getstate, random.setstate),
    (np.random.get_state, np.random.set_state),
    (np.geterr, lambda value: np.seterr(**value)),
    (np.get_printoptions, lambda value: np.set_printoptions(**value)),
    (torch.get_rng_state, torch.set_rng_state),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.are_deterministic_algorithms_enabled, _set_deterministic),
    (torch.get_default_device, _set_device),
)


@contextmanager
def kept() -> Iterator[None]:
    """Afterwards everything is set as it was before."""
    before = [get() for get, _ in _SETTINGS]
    environment, path, filters = dict(os.environ), list(sys.path), list(warnings.filters)
    try:
        yield
    finally:
        for (_, put), value in zip(_SETTINGS, before, strict=True):
            put(value)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        sys.path[:] = path
        warnings.filters[:] = filters  # pyright: ignore[reportIndexIssue] - typed as read-only
