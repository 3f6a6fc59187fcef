"""The learner merges a step's tensors into messages; each goes the fastest way; what it takes (chapter 04)."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.chapters.all_reduce_ways import RANKS, three_ways
from course_lib.chapters.refused import Refused
from course_lib.observe.show.shown import Shown, headed
from course_lib.observe.show.tables import table
from simulator.inputs.hardware import Hardware, Link

TENSORS = (0.001, 0.004, 0.04, 0.3, 2, 5, 10, 20, 40, 60, 120, 200)  # MB
BUFFERS = 256  # MB for copies of tensors that travel together
GOAL = 240  # GPU-hours
STEPS = 100_000


def price_messages(messages: Sequence[Sequence[float]], link: Link, hardware: Hardware) -> Shown:
    """Milliseconds of each message, one after another, and the GPU-hours that all ranks wait for them in training.

    Args:
        messages: the MB of each of a message's tensors; a message of several copies them into one buffer.

    Raises:
        Refused: a tensor that there is not, or one that is not in exactly one message.
    """
    held = [size for sizes in messages for size in _checked(sizes)]
    for size in TENSORS:
        if (times := held.count(size)) != 1:
            raise Refused(f"the tensor of {size:g} MB is in {times} messages, not in one")
    ways = three_ways(link, hardware)
    rows, together, copied = [], 0.0, 0.0
    for sizes in messages:
        took = {way: 1e3 * seconds(1e6 * sum(sizes)) for way, seconds in ways.items()}
        way = min(ways, key=took.__getitem__)
        buffer = sum(sizes) if len(sizes) > 1 else 0
        rows.append([", ".join(f"{size:g}" for size in sizes), f"{buffer:.6g}", way, f"{took[way]:.3f}"])
        together, copied = together + took[way], copied + buffer
    hours = together / 3.6e6 * STEPS * RANKS
    found = table(
        ["message (MB)", "copied (MB)", "fastest way", "time (ms)"],
        [*rows, ["together", f"{copied:.6g}", "", f"{together:.3f}"]],
    )
    if copied > BUFFERS:
        return headed(f"It does not fit: {copied:.0f} MB are copied, into buffers of {BUFFERS} MB.", found)
    verdict = "You made it" if hours < GOAL else f"Not yet below {GOAL}"
    return headed(f"{verdict}: {hours:,.2f} GPU-hours of waiting in {STEPS:,} steps.", found)


def _checked(sizes: Sequence[float]) -> Sequence[float]:
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not sizes:
        raise Refused("a message is a list of tensors, such as [60, 40]")
    for size in sizes:
        if size not in TENSORS:
            raise Refused(f"there is no tensor of {size} MB")
    return sizes
