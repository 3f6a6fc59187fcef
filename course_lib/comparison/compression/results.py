"""The file of finished runs, the choice of the learning rate among them, and the table that is made of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib.comparison import runs as comparison
from course_lib.comparison.compression.methods import LRS, METHODS, NAMES
from course_lib.comparison.compression.run import Setting
from course_lib.comparison.runs import Run
from course_lib.comparison.walk import best, next_try


class Runs(comparison.Runs[Setting]):
    """The file of finished runs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Setting, free=("method", "lr", "seed"))


def swept(rows: Iterable[Run], method: str, seed: int, lrs: Sequence[float]) -> list[Run]:
    """The runs among which a method's learning rate is chosen, as the walk reads them: the best score is the highest.

    A run whose weights are no numbers any more has the loss ``inf``, so it is never chosen before another one.
    """
    own = [row for row in rows if row["method"] == method and row["seed"] == seed and row["lr"] in lrs]
    return [row | {"start": "", "validation": -row["validation"]} for row in own]


def chosen_lr(rows: Iterable[Run], method: str, seed: int, lrs: Sequence[float]) -> float:
    return best(swept(rows, method, seed, lrs))["lr"]


def next_lr(rows: Iterable[Run], method: str, seed: int, lrs: Sequence[float]) -> float | None:
    """The learning rate to try next, or None when those beside the best one were tried, too."""
    found = next_try(("",), tuple(sorted(lrs)), swept(rows, method, seed, lrs))
    return None if found is None else found[1]


@dataclass(frozen=True)
class Line:
    """One line of the table: a method at the learning rate that was chosen for it.

    Attributes:
        tests: the loss of each seed on the test part, in nats.
        sent: bytes that rank 0 sent in the whole run, the mean over seeds.
        samples: that all ranks together were trained on in the whole run.
        tried: how many learning rates were tried.
        complete: whether the sweep has ended; before, a better rate may still be found.
    """

    method: str
    title: str
    lr: float
    tests: tuple[float, ...]
    sent: float
    samples: int
    tried: int
    complete: bool

    @property
    def test(self) -> float:
        return statistics.mean(self.tests)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None: there is only one, or one is not finite."""
        finite = len(self.tests) > 1 and all(map(math.isfinite, self.tests))
        return statistics.stdev(self.tests) if finite else None

    @property
    def sent_per_sample(self) -> float:
        return self.sent / self.samples


def lines(rows: Iterable[Run], seeds: Sequence[int], lrs: Sequence[float] = LRS) -> list[Line]:
    """A line for each method of which anything was run, in the table's order; its seeds may be fewer than ``seeds``.

    Args:
        rows: runs that belong together (``Runs.like``).
        seeds: the first is the one under which the sweep was run.
    """
    rows, found = list(rows), []
    for name in NAMES:
        if not (tried := swept(rows, name, seeds[0], lrs)):
            continue
        lr = chosen_lr(rows, name, seeds[0], lrs)
        same = {row["seed"]: row for row in rows if row["method"] == name and row["lr"] == lr}
        same = [same[seed] for seed in seeds if seed in same]
        found.append(
            Line(
                name,
                METHODS[name].title,
                lr,
                tuple(row["test"] for row in same),
                statistics.mean(row["sent"] for row in same),
                same[0]["steps"] * same[0]["batch"],
                len(tried),
                next_lr(rows, name, seeds[0], lrs) is None,
            )
        )
    return found


HEADS = ["method", "test loss, nats", "± over seeds", "each seed", "learning rate", "sent for a sample, B"]


def cells(line: Line) -> list[str]:
    """What the table shows of a line, in the order of ``HEADS``."""
    return [
        line.title,
        f"{line.test:.3f}",
        "–" if line.spread is None else f"{line.spread:.3f}",
        ", ".join(f"{loss:.3f}" for loss in line.tests),
        f"{line.lr:g}" + ("" if line.complete else " so far"),
        f"{line.sent_per_sample:,.0f}",
    ]


def markdown(found: Sequence[Line]) -> str:
    table = [HEADS, ["---"] + ["---:"] * (len(HEADS) - 1), *map(cells, found)]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)
