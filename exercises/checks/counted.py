"""What an answer does, counted and not timed: look-ups in a dict, operations of PyTorch, lines of Python."""

import os
import sys
from collections.abc import Callable

from torch.utils._python_dispatch import TorchDispatchMode


class CountedDict(dict):
    """Counts how often it is looked into; going through all of it counts each entry."""

    looked = 0


def _counted(name: str) -> Callable:
    def method(table: CountedDict, *given):
        table.looked += 1 if given else len(table)
        return getattr(dict, name)(table, *given)

    return method


for _name in ("__getitem__", "__contains__", "get", "__iter__", "keys", "values", "items", "copy"):
    setattr(CountedDict, _name, _counted(_name))


class Operations(TorchDispatchMode):
    """Counts PyTorch's operations."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def lines_run(most: int, function: Callable, *args) -> tuple[object, int]:
    """What the function returns, and the lines that it ran, not in Python's library, up to one more than ``most``."""
    lines, before = 0, sys.gettrace()

    def trace(frame, event: str, _argument) -> Callable | None:
        nonlocal lines
        if frame.f_code.co_filename.startswith(os.path.dirname(os.__file__)):
            return None
        lines += event == "line"
        if lines > most:
            sys.settrace(None)
        return trace

    sys.settrace(trace)
    try:
        return function(*args), lines
    finally:
        sys.settrace(before)
