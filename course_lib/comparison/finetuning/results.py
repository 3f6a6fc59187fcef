"""Finished runs as lines of JSON, the choice among them, and the table that is made of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib.comparison import runs as comparison
from course_lib.comparison.finetuning.methods import METHODS, NAMES, PROBE
from course_lib.comparison.finetuning.run import CATEGORIES, Setting
from course_lib.comparison.finetuning.sweep import rates_of, starts_of
from course_lib.comparison.runs import Run
from course_lib.comparison.walk import best, next_try, with_halves


class Runs(comparison.Runs[Setting]):
    """The file of finished runs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Setting, free=("method", "start", "lr", "seed"))


@dataclass(frozen=True)
class Line:
    """One line of the table: a method at the start and the learning rate that were chosen for it.

    Attributes:
        tests: the test accuracy of each seed.
        measured: bytes by category, each at its own largest, and ``peak``, all together at one moment; None: no steps.
        predicted: bytes of the categories that the simulator can predict.
        sweep: start, learning rate and validation accuracy of each run of the sweep.
        complete: whether the sweep has ended; before, a better start or rate may still be found.
    """

    method: str
    title: str
    start: str
    lr: float
    validation: float
    tests: tuple[float, ...]
    trainable: int
    total: int
    measured: dict[str, float] | None
    predicted: dict[str, float] | None
    seconds_per_step: float | None
    sweep: tuple[tuple[str, float, float], ...] = ()
    complete: bool = True

    @property
    def test(self) -> float:
        return statistics.mean(self.tests)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None: there is only one."""
        return statistics.stdev(self.tests) if len(self.tests) > 1 else None

    @property
    def percent(self) -> float:
        return 100 * self.trainable / self.total


def lines(rows: Iterable[Run], seeds: Sequence[int], lrs: Sequence[float] | None = None) -> list[Line]:
    """A line for each method of which anything was run, in the table's order; its seeds may be fewer than ``seeds``.

    Args:
        rows: runs that belong together (``Runs.like``): one task, one number of steps, one device.
        seeds: the first is the one under which the sweep was run.
        lrs: learning rates that were tried in place of each method's own.
    """
    rows, found = list(rows), []
    for name in NAMES:
        rates = rates_of(name, lrs)
        own = [row for row in rows if row["method"] == name and row["lr"] in with_halves(rates)]
        swept = [row for row in own if row["seed"] == seeds[0]]
        if not swept:
            continue
        chosen = best(swept)
        same = {row["seed"]: row for row in own if all(row[key] == chosen[key] for key in ("start", "lr"))}
        same = [same[seed] for seed in seeds if seed in same]
        times = [row["seconds_per_step"] for row in same if row["seconds_per_step"] is not None]
        found.append(
            Line(
                name,
                title_of(name),
                chosen["start"],
                chosen["lr"],
                chosen["validation"],
                tuple(row["test"] for row in same),
                chosen["trainable"],
                chosen["total"],
                chosen["memory"],
                chosen["predicted_memory"],
                statistics.median(times) if times else None,
                tuple(sorted((row["start"], row["lr"], row["validation"]) for row in swept)),
                next_try(starts_of(name), rates, swept) is None,
            )
        )
    return found


def title_of(method: str) -> str:
    return "Linear probe" if method == PROBE else METHODS[method].title


def markdown(found: Sequence[Line], methods: Iterable[str] = ()) -> str:
    """The table, memory in MB; where a category is predicted, that figure follows the measured one in brackets.

    ``methods`` are those that should be there: one without a line is shown as not run yet.
    """
    heads = [
        "method",
        "start",
        "learning rate",
        "validation",
        "test",
        "± over seeds",
        "seeds",
        "trained",
        "%",
    ]
    heads += [name.replace("_", " ") + ", MB" for name in CATEGORIES] + ["peak, MB", "ms a step"]
    table = [heads, ["---"] + ["---:"] * (len(heads) - 1)]
    by_name, asked = {line.method: line for line in found}, set(methods)
    for name in NAMES:
        if (line := by_name.get(name)) is None:
            if name in asked:
                table.append([title_of(name), "not run yet", *[""] * (len(heads) - 2)])
            continue
        cells = [line.title, line.start or "–", rate_of(line), f"{line.validation:.3f}", f"{line.test:.3f}"]
        cells += ["–" if line.spread is None else f"{line.spread:.3f}", str(len(line.tests))]
        cells += [f"{line.trainable:,}", f"{line.percent:.3g}"]
        cells += [_megabytes(line, name) for name in (*CATEGORIES, "peak")]
        cells += ["–" if line.seconds_per_step is None else f"{1e3 * line.seconds_per_step:.0f}"]
        table.append(cells)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in table)


def rate_of(line: Line) -> str:
    rate = f"C = {line.lr:g}" if line.method == PROBE else f"{line.lr:g}"
    return rate if line.complete else rate + " so far"


def _megabytes(line: Line, name: str) -> str:
    if line.measured is None:
        return "–"
    predicted = (line.predicted or {}).get(name)
    return f"{line.measured[name] / 1e6:.1f}" + ("" if predicted is None else f" ({predicted / 1e6:.1f})")
