"""The check of 08.3: where to cut a chain of unequal layers, against the least peak of all cuts."""

from __future__ import annotations

import ctypes
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from course_lib.grading.checks.recomputation_counted import Counted, state_targets
from course_lib.grading.report import Report, check
from simulator.inputs.chunks import chunk_sizes
from simulator.predict.recomputation import Segment, least_peak, peak_bytes

PATIENCE = 10  # seconds for one chain; a good answer takes milliseconds
Numbers = Sequence[int]
Cut = Callable[[list[int], list[int]], list[int]]


def _peak(starts: Numbers, kept: Numbers, saved: Numbers) -> int:
    ends = [*starts[1:], len(saved)]
    return int(peak_bytes([Segment(kept[i], sum(saved[i:k])) for i, k in zip(starts, ends, strict=True)]))


def _chains() -> dict[str, tuple[list[int], list[int]]]:
    draw = random.Random(83)
    unequal = {
        f"{n} unequal layers": (
            [draw.randint(1, 30) for _ in range(n)],
            [draw.choice((5, 10, 20, 90)) for _ in range(n)],
        )
        for n in (9, 12, 40)
    }
    last = unequal.popitem()  # the one for which all cuts cannot be tried comes last
    # A network that narrows: inputs shrink from layer to layer, as in a ResNet.
    shrinking = [2 ** (6 - i // 2) for i in range(12)], [2 ** (7 - i // 2) for i in range(12)]
    return {
        **unequal,
        "one layer": ([5], [7]),
        "12 layers that shrink": shrinking,
        "a large layer in the middle": ([1] * 9, [2, 2, 2, 2, 100, 2, 2, 2, 2]),
        "a large input of the last layer": ([1, 100], [2, 1]),
        "16 equal layers": ([8] * 16, [8] * 16),
        last[0]: last[1],
    }


@check
def check_08_3(report: Report, cut: Cut) -> None:
    peaks = []
    for name, (kept, saved) in _chains().items():
        with report.case(name):
            starts = _starts(report, cut, kept, saved)
            if starts is not None:
                mistakes = {
                    sentence: lambda program=program, chain=(kept, saved): _peak(program(*chain), *chain)
                    for sentence, program in MISTAKES.items()
                }
                peaks.append(
                    Counted(name, _peak(starts, kept, saved), int(least_peak(kept, saved)), mistakes)
                )
    if peaks:
        state_targets(report, "peak", peaks, "The peak is the least of all possible cuts.")


def _starts(report: Report, cut: Cut, kept: list[int], saved: list[int]) -> list[int] | None:
    """The answer's cuts, or None where it is too slow."""
    n, began = len(saved), time.monotonic()
    starts = _in_time(cut, list(kept), list(saved))
    if starts is _TOO_SLOW:
        waited = math.ceil(time.monotonic() - began)
        task = f"For {n} layers there are too many cuts to try each one." if n == 40 else None
        return report.at_most("seconds until the cuts are found", waited, PATIENCE, task=task)
    task = "Return the numbers of the layers at which segments begin, rising, the first of them 0."
    starts = starts.tolist() if type(starts).__module__ in ("numpy", "torch") else starts
    if not isinstance(starts, list | tuple) or not all(isinstance(i, int) for i in starts):
        report.fail(f"the result is {starts!r:.80}, not a list of whole numbers", task=task)
    starts = list(starts)
    if starts and all(1 <= i <= n for i in starts) and starts[-1] == n and starts == sorted(set(starts)):
        report.fail(f"the result is {_short(starts)}: where segments end, not where they begin", task=task)
    if not starts or starts[0] != 0:
        report.fail(f"the segments begin at {_short(starts)}, and none begins at layer 0", task=task)
    if starts != sorted(set(starts)):
        report.fail(f"the segments begin at {_short(starts)}, which does not rise", task=task)
    if starts[-1] >= n:
        report.fail(f"the last segment begins at {starts[-1]}, and the last layer is {n - 1}", task=task)
    report.ok("the segments cover the chain")
    return starts


def _short(starts: Iterable[int]) -> str:
    starts = list(starts)
    return ", ".join(map(str, starts[:8])) + (", …" if len(starts) > 8 else "") or "no layer"


_TOO_SLOW = object()


def _in_time(function: Callable, *args: Any) -> Any:
    """What the function returns or raises, or ``_TOO_SLOW``: then it is stopped, so that the check can end."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = function(*args)
        except BaseException as error:  # raised again below, in the thread of the check
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        return _TOO_SLOW
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


# ---- likely mistakes: cuts that are best for another question ------------------------------------------------


def _best(total: Callable[[int, int, int], int], n: int) -> list[int]:
    """From the last layer to the first: the end k that is best by ``total(i, k, the best from k on)``."""
    least, end = [0] * (n + 1), [n] * n
    for i in reversed(range(n)):
        least[i], end[i] = min((total(i, k, least[k]), k) for k in range(i + 1, n + 1))
    starts = [0]
    while end[starts[-1]] < n:
        starts.append(end[starts[-1]])
    return starts


def _own_input_forgotten(kept: Numbers, saved: Numbers) -> list[int]:
    n = len(saved)
    return _best(lambda i, k, rest: max(sum(saved[i:k]), kept[i] + rest if k < n else 0), n)


def _last_alone(kept: Numbers, saved: Numbers) -> list[int]:
    n, never = len(saved), sum(kept) + sum(saved)
    alone = lambda i, k, rest: kept[i] + max(sum(saved[i:k]), rest) if i == n - 1 or k < n else never  # noqa: E731
    return _best(alone, n)


def _all_inputs(kept: Numbers, saved: Numbers) -> list[int]:
    """The least sum of all inputs and the largest segment."""
    n, never = len(saved), sum(kept) + sum(saved)
    found = []
    for limit in {sum(saved[i:k]) for i in range(n) for k in range(i + 1, n + 1)}:
        if limit >= max(saved):
            total = lambda i, k, rest, most=limit: kept[i] + rest if sum(saved[i:k]) <= most else never  # noqa: E731
            starts = _best(total, n)
            found.append((sum(kept[i] for i in starts) + limit, starts))
    return min(found)[1]


def _filled(kept: Numbers, saved: Numbers) -> list[int]:
    starts, inside = [0], 0
    for i, size in enumerate(saved):
        if i and inside + size > max(saved):
            starts.append(i)
            inside = 0
        inside += size
    return starts


def _filled_up_to_a_peak(kept: Numbers, saved: Numbers) -> list[int]:
    """For the least peak with which it works, every segment as long as the peak allows."""
    for peak in range(kept[0] + saved[0], sum(kept) + sum(saved) + 1):
        starts, inputs, inside = [0], kept[0], 0
        for i, size in enumerate(saved):
            if inputs + inside + size > peak:
                starts.append(i)
                inputs, inside = inputs + kept[i], 0
            inside += size
            if inputs + inside > peak:
                break
        else:
            return starts
    return [0]


def _root_segments(kept: Numbers, saved: Numbers) -> list[int]:
    sizes = chunk_sizes(len(saved), round(len(saved) ** 0.5))
    return [sum(sizes[:i]) for i in range(len(sizes))]


MISTAKES: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "when every layer is a segment of its own": lambda kept, saved: range(len(saved)),
    "when the whole chain is one segment": lambda kept, saved: [0],
    "when the chain is cut into √n equal segments": _root_segments,
    "when every segment has √n layers": lambda kept, saved: range(
        0, len(saved), max(1, round(len(saved) ** 0.5))
    ),
    "when a segment takes layers as long as their `saved` is no more than the largest layer's": _filled,
    "when each segment takes as many layers as the peak allows, though a shorter one may leave a smaller input": (
        _filled_up_to_a_peak
    ),
    "when the input of the segment that goes backward is not counted": _own_input_forgotten,
    "when the inputs of segments behind the present one are counted, though they are gone": _all_inputs,
    "when the last layer is always a segment of its own": _last_alone,
}
