"""The finished runs that the course keeps, what was chosen among them, and the table of both kinds of tasks.

``kept/runs.jsonl`` beside this file has a line for each run. ``COMMAND``, given in the project's folder, runs what is
missing there and changes nothing else. Four methods have more tasks: ``COMMAND`` with ``--tasks shout,yell,bang
--methods prompt,p-tuning-v2,lora-r1,lora-r8``, which writes its own table over ``kept/table.md``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib.comparison import runs as comparison
from course_lib.comparison.finetuning.selection.methods import METHODS
from course_lib.comparison.finetuning.selection.run import Setting

FOLDER = Path(__file__).parent / "kept"
STEPS, BATCH = 100, 16
COMMAND = "python -m course_lib.comparison.finetuning.selection --out course_lib/comparison/finetuning/selection/kept"


class Runs(comparison.Runs[Setting]):
    """The file of finished runs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Setting, free=("task", "method", "lr", "seed"))


@dataclass(frozen=True)
class Line:
    """What was chosen for one method on one task, by the mean over the seeds on the validation part.

    Attributes:
        tests: the share of right answers on the test part, of each seed.
        tried: every learning rate, with its mean on the validation part.
    """

    task: str
    method: str
    lr: float
    tests: tuple[float, ...]
    trainable: int
    tried: tuple[tuple[float, float], ...]

    @property
    def title(self) -> str:
        return METHODS[self.method].title

    @property
    def test(self) -> float:
        return statistics.mean(self.tests)

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; 0 of one seed."""
        return statistics.stdev(self.tests) if len(self.tests) > 1 else 0.0


def kept_lines(path: Path = FOLDER / "runs.jsonl") -> dict[tuple[str, str], Line]:
    """(task, method) -> what was chosen."""
    return lines(Runs(path).like(Setting("", "", 0, 0, STEPS, BATCH)))


def lines(rows: Iterable[comparison.Run]) -> dict[tuple[str, str], Line]:
    """A line for each method and task of which runs are finished. Equal rates: the smaller one is chosen."""
    groups: dict[tuple[str, str], dict[float, list]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["method"]), {}).setdefault(row["lr"], []).append(row)
    found = {}
    for (task, method), by_rate in groups.items():
        means = {lr: statistics.mean(r["validation"] for r in own) for lr, own in sorted(by_rate.items())}
        lr = max(means, key=means.__getitem__)
        own = sorted(by_rate[lr], key=lambda row: row["seed"])
        tests = tuple(row["test"] for row in own)
        found[task, method] = Line(task, method, lr, tests, own[0]["trainable"], tuple(means.items()))
    return found


def markdown(found: dict[tuple[str, str], Line], tasks: Sequence[str], methods: Sequence[str]) -> str:
    """The table: a row for each method, and for each task the test part's mean, its spread, and the rate."""
    heads = ["method", "trained", *(f"{task}, %" for task in tasks), *(f"rate, {task}" for task in tasks)]
    rows = [heads, ["---"] + ["---:"] * (len(heads) - 1)]
    for method in methods:
        own = [found.get((task, method)) for task in tasks]
        trained = next((f"{line.trainable:,}" for line in own if line), "–")
        shares = [f"{100 * line.test:.1f} ± {100 * line.spread:.1f}" if line else "–" for line in own]
        rows.append(
            [METHODS[method].title, trained, *shares, *(f"{line.lr:g}" if line else "–" for line in own)]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
