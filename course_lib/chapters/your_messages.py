"""The learner merges a step's tensors into messages and picks a way for each; what they take is told (chapter 04)."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.chapters.refused import Refused
from course_lib.observe.show.shown import Shown, headed
from course_lib.observe.show.tables import table
from simulator.inputs.hardware import Link
from simulator.predict.collective_time import all_reduce_seconds

RANKS = 1000
TENSORS = (0.001, 0.004, 0.04, 0.3, 2, 5, 10, 20, 40, 60, 120, 200)  # MB
BUFFERS = 300  # MB for copies of tensors that travel together
GOAL = 700  # GPU-hours
STEPS = 100_000
WAYS = ("tree", "ring")


def price_messages(messages: Sequence[tuple[str, Sequence[float]]], link: Link) -> Shown:
    """Milliseconds of each message, one after another, and the GPU-hours that all ranks wait for them in training.

    Args:
        messages: (way, MB of each of its tensors); a message of several copies them into one buffer.

    Raises:
        Refused: a way or a tensor that there is not, or a tensor that is not in exactly one message.
    """
    held = [size for way, sizes in messages for size in _checked(way, sizes)]
    for size in TENSORS:
        if (times := held.count(size)) != 1:
            raise Refused(f"the tensor of {size:g} MB is in {times} messages, not in one")
    rows, together, copied = [], 0.0, 0.0
    for way, sizes in messages:
        ms = 1e3 * all_reduce_seconds(way, 1e6 * sum(sizes), RANKS, link)
        buffer = sum(sizes) if len(sizes) > 1 else 0
        rows.append([f"{way}: {', '.join(f'{size:g}' for size in sizes)}", f"{buffer:.3g}", f"{ms:.2f}"])
        together, copied = together + ms, copied + buffer
    hours = together / 3.6e6 * STEPS * RANKS
    found = table(
        ["message (MB)", "copied (MB)", "time (ms)"],
        [*rows, ["together", f"{copied:.3g}", f"{together:.2f}"]],
    )
    if copied > BUFFERS:
        return headed(f"It does not fit: {copied:.0f} MB are copied, into buffers of {BUFFERS} MB.", found)
    verdict = "You made it" if hours < GOAL else f"Not yet below {GOAL}"
    told = f"{hours:,.0f}" if round(hours) != GOAL else f"{hours:,.2f}"  # 700.27 is not below 700
    return headed(f"{verdict}: {told} GPU-hours of waiting in {STEPS:,} steps.", found)


def _checked(way: str, sizes: Sequence[float]) -> Sequence[float]:
    if way not in WAYS:
        raise Refused(f"the way of a message is {' or '.join(map(repr, WAYS))}, not {way!r}")
    if not isinstance(sizes, Sequence) or not sizes:
        raise Refused(f'a message is a way and a list of tensors, such as ("{way}", [60, 40])')
    for size in sizes:
        if size not in TENSORS:
            raise Refused(f"there is no tensor of {size} MB")
    return sizes
