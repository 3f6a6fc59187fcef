"""How much Python an answer runs: a target that is counted and not timed."""

import sys
from collections.abc import Callable


def lines_run(most: int, function: Callable, *args) -> tuple[object, int]:
    """What the function returns, and how many lines of Python it ran, counted up to one more than ``most``."""
    lines, before = 0, sys.gettrace()

    def trace(_frame, event: str, _argument) -> Callable:
        nonlocal lines
        lines += event == "line"
        if lines > most:
            sys.settrace(None)
        return trace

    sys.settrace(trace)
    try:
        return function(*args), lines
    finally:
        sys.settrace(before)
