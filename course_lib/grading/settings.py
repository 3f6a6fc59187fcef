"""Settings of Python, NumPy and torch that one answer may leave and the next would feel."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

_set_back: list[Callable[[], Any]] = []


def remember() -> None:
    """Take down how everything is set now."""
    _set_back[:] = [_python()]
    if "numpy" in sys.modules:
        _set_back.append(_numpy())
    if "torch" in sys.modules:
        _set_back.append(_torch())


def restore() -> None:
    """Set everything as it was."""
    for each in _set_back:
        each()


def _python() -> Callable[[], None]:
    environment, folder, path = dict(os.environ), os.getcwd(), list(sys.path)
    limit, filters, drawn = sys.getrecursionlimit(), list(warnings.filters), random.getstate()

    def set_back() -> None:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        os.chdir(folder)
        sys.path[:] = path
        sys.setrecursionlimit(limit)
        warnings.filters[:] = filters  # pyright: ignore[reportIndexIssue] - typed as read-only
        random.setstate(drawn)

    return set_back


def _numpy() -> Callable[[], None]:
    import numpy as np

    errors, printing, drawn = np.geterr(), np.get_printoptions(), np.random.get_state()

    def set_back() -> None:
        np.seterr(**errors)
        np.set_printoptions(**printing)
        np.random.set_state(drawn)

    return set_back


def _torch() -> Callable[[], None]:
    import torch

    dtype, device, drawn = torch.get_default_dtype(), torch.get_default_device(), torch.get_rng_state()
    grad, threads = torch.is_grad_enabled(), torch.get_num_threads()
    strict = torch.are_deterministic_algorithms_enabled()

    def set_back() -> None:
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device if device.type != "cpu" else None)
        torch.set_rng_state(drawn)
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)

    return set_back
