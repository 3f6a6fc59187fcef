"""Finished runs as lines of JSON, the choice among them, and the table that is made of them."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from course_lib.finetuning_comparison.methods import METHODS, NAMES, PROBE
from course_lib.finetuning_comparison.run import CATEGORIES, Setting

Run = dict[str, Any]


class Runs:
    """The file of finished runs. A line is written when its run has ended, so an interrupted run leaves nothing.

    Raises:
        ValueError: the file holds a line that is no run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a machine that stopped while writing: the line is computed again
            path.write_text(whole, encoding="utf-8")
        self.rows: dict[Setting, Run] = {}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                self.rows[setting_of(row)] = row
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"line {number} of {path} is no finished run; remove it, or name another --out."
                ) from error

    def add(self, row: Run) -> Run:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[setting_of(row)] = row
        return row


def setting_of(row: Run) -> Setting:
    return Setting(**{field.name: row[field.name] for field in fields(Setting)})


def best(rows: Iterable[Run]) -> Run:
    """The run with the highest accuracy on the validation part, the first of equal ones. The test is not read."""
    return max(rows, key=lambda row: row["validation"])


@dataclass(frozen=True)
class Line:
    """One line of the table: a method at the start and the learning rate that were chosen for it.

    Attributes:
        tests: the test accuracy of each seed.
        measured: bytes by category, each at its own largest, and ``peak``, all together at one moment; None: no steps.
        predicted: bytes of the categories that the simulator can predict.
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


def lines(rows: Iterable[Run], seeds: Sequence[int]) -> list[Line]:
    """A line for each method whose sweep (under the first seed) and whose further seeds are done.

    ``rows`` belong together: one task, one number of steps, one device.
    """
    rows, found = list(rows), []
    for name in NAMES:
        swept = [row for row in rows if row["method"] == name and row["seed"] == seeds[0]]
        if not swept:
            continue
        chosen = best(swept)
        same = {
            row["seed"]: row
            for row in rows
            if all(row[key] == chosen[key] for key in ("method", "start", "lr")) and row["seed"] in seeds
        }
        if not all(seed in same for seed in seeds):
            continue
        times = [row["seconds_per_step"] for row in same.values() if row["seconds_per_step"] is not None]
        found.append(
            Line(
                name,
                "Linear probe" if name == PROBE else METHODS[name].title,
                chosen["start"],
                chosen["lr"],
                chosen["validation"],
                tuple(same[seed]["test"] for seed in seeds),
                chosen["trainable"],
                chosen["total"],
                chosen["memory"],
                chosen["predicted_memory"],
                statistics.median(times) if times else None,
            )
        )
    return found


def markdown(found: Sequence[Line]) -> str:
    """The table, memory in MB; where the simulator predicts a category, its figure follows the measured one."""
    heads = ["method", "start", "learning rate", "validation", "test", "± over seeds", "trained", "%"]
    heads += [name.replace("_", " ") + ", MB" for name in CATEGORIES] + ["peak, MB", "ms a step"]
    table = [heads, ["---"] + ["---:"] * (len(heads) - 1)]
    for line in found:
        cells = [line.title, line.start or "–", _rate(line), f"{line.validation:.3f}", f"{line.test:.3f}"]
        cells += ["–" if line.spread is None else f"{line.spread:.3f}"]
        cells += [f"{line.trainable:,}", f"{line.percent:.2f}"]
        cells += [_megabytes(line, name) for name in (*CATEGORIES, "peak")]
        cells += ["–" if line.seconds_per_step is None else f"{1e3 * line.seconds_per_step:.0f}"]
        table.append(cells)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in table)


def _rate(line: Line) -> str:
    return f"C = {line.lr:g}" if line.method == PROBE else f"{line.lr:g}"


def _megabytes(line: Line, name: str) -> str:
    if line.measured is None:
        return "–"
    predicted = (line.predicted or {}).get(name)
    return f"{line.measured[name] / 1e6:.1f}" + ("" if predicted is None else f" ({predicted / 1e6:.1f})")
