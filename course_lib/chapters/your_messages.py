"""The learner cuts a step's sums into messages and picks a way for each; what it takes is told (chapter 04)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from course_lib.observe.show.shown import Shown, headed
from course_lib.observe.show.tables import table
from simulator.inputs.hardware import Link
from simulator.predict.collective_time import all_reduce_seconds

Messages = Sequence[tuple[str, float]]  # (way, bytes)
RANKS, GRADIENTS, NUMBERS = 1000, 1e9, 400  # bytes of all gradients, and of a hundred numbers
GOAL = 63e-3  # seconds; one ring for all gradients and a tree for each number take 74e-3


def time_step(gradients: Messages, numbers: Messages, link: Link) -> Shown:
    """Milliseconds of all messages, one after another, on 1,000 ranks.

    Raises:
        ValueError: the messages do not hold 1 GB of gradients and 400 bytes of numbers.
    """
    rows, together = [], 0.0
    for name, messages, whole in (("gradients", gradients, GRADIENTS), ("numbers", numbers, NUMBERS)):
        held = sum(size for _, size in messages)
        if not math.isclose(held, whole, rel_tol=1e-6):
            raise ValueError(f"the {name} are {whole:,.0f} bytes, and your messages hold {held:,.0f}")
        seconds = sum(all_reduce_seconds(way, size, RANKS, link) for way, size in messages)
        rows.append([name, len(messages), f"{1e3 * seconds:,.1f}"])
        together += seconds
    verdict = "You made it." if together < GOAL else f"Not yet below {1e3 * GOAL:.0f} ms."
    found = table(["", "messages", "time (ms)"], [*rows, ["together", None, f"{1e3 * together:,.1f}"]])
    return headed(verdict, found)
