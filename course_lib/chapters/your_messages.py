"""The learner merges a step's tensors into messages, and chooses a way for each; what it takes (chapter 04)."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.chapters.all_reduce_ways import ways_of_one
from course_lib.chapters.refused import Refused
from course_lib.observe.show.shown import Shown, headed
from course_lib.observe.show.tables import table
from simulator.inputs.hardware import Link

TENSORS = (0.001, 0.004, 0.04, 0.3, 2, 5, 10, 20, 40, 60, 120, 200)  # MB
BUFFERS = 256  # MB for copies of tensors that travel together
GOAL = 50  # ms


def price_messages(messages: Sequence[tuple[str, Sequence[float]]], link: Link) -> Shown:
    """Milliseconds of each all-reduce, one after another.

    Args:
        messages: of each its way, and the MB of its tensors; several are copied into one buffer.

    Raises:
        Refused: a way or a tensor that there is not, or a tensor that is not in exactly one all-reduce.
    """
    ways = ways_of_one(link)
    held = [size for message in messages for size in _checked(message, list(ways))]
    for size in TENSORS:
        if (times := held.count(size)) != 1:
            raise Refused(f"the tensor of {size:g} MB is in {times} all-reduces, not in one")
    rows, together, copied = [], 0.0, 0.0
    for way, sizes in messages:
        took = 1e3 * ways[way](1e6 * sum(sizes))
        buffer = sum(sizes) if len(sizes) > 1 else 0
        rows.append([way, ", ".join(f"{size:g}" for size in sizes), f"{buffer:.6g}", f"{took:.2f}"])
        together, copied = together + took, copied + buffer
    found = table(
        ["way", "tensors (MB)", "copied (MB)", "time (ms)"],
        [*rows, ["together", "", f"{copied:.6g}", f"{together:.2f}"]],
    )
    if copied > BUFFERS:
        return headed(f"It does not fit: {copied:.0f} MB are copied, into buffers of {BUFFERS} MB.", found)
    verdict = "You made it" if together < GOAL else f"Not yet below {GOAL}"
    return headed(f"{verdict}: {together:.1f} ms.", found)


def _checked(message: tuple[str, Sequence[float]], ways: list[str]) -> Sequence[float]:
    if not isinstance(message, Sequence) or len(message) != 2 or message[0] not in ways:
        raise Refused(f"an all-reduce is a way and a list of tensors, such as ({ways[0]!r}, [60, 40])")
    sizes = message[1]
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not sizes:
        raise Refused(f"an all-reduce needs a list of tensors, such as ({message[0]!r}, [60, 40])")
    for size in sizes:
        if size not in TENSORS:
            raise Refused(f"there is no tensor of {size} MB")
    return sizes
