"""Settings of Python, NumPy and torch that one answer may leave and the next would feel."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept() -> Iterator[None]:
    """Afterwards everything is set as it was before."""
    environment, folder, path = dict(os.environ), os.getcwd(), list(sys.path)
    limit, filters = sys.getrecursionlimit(), list(warnings.filters)
    errors, printing = np.geterr(), np.get_printoptions()
    drawn = random.getstate(), np.random.get_state(), torch.get_rng_state()
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    grad, threads = torch.is_grad_enabled(), torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        os.chdir(folder)
        sys.path[:] = path
        sys.setrecursionlimit(limit)
        warnings.filters[:] = filters  # pyright: ignore[reportIndexIssue] - typed as read-only
        np.seterr(**errors)
        np.set_printoptions(**printing)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device if device.type != "cpu" else None)
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
        # To ask is quick; to set imports the compiler.
        if torch.are_deterministic_algorithms_enabled() != strict:
            torch.use_deterministic_algorithms(strict)
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])
        torch.set_rng_state(drawn[2])
