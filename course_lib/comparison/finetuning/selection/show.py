"""The comparison as the in-depth notebook shows it."""

from __future__ import annotations

from course_lib.comparison.finetuning.selection.kept import Line
from course_lib.comparison.finetuning.selection.methods import METHODS
from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table


def both_kinds(found: dict[tuple[str, str], Line]) -> Shown:
    """A row for each method that was run: trained numbers, and for each task the right answers at the best rate."""
    tasks = sorted({task for task, _ in found})
    heads = ["method", "numbers trained", *(f"{task}, % (rate)" for task in tasks), "seeds"]
    rows = []
    for name, method in METHODS.items():
        own = [found[task, name] for task in tasks if (task, name) in found]
        if own:
            shares = [_share(found.get((task, name))) for task in tasks]
            rows.append([method.title, own[0].trainable, *shares, min(len(line.tests) for line in own)])
    return table(heads, rows)


def _share(line: Line | None) -> str | None:
    if line is None:
        return None
    spread = f" ± {100 * line.spread:.1f}" if len(line.tests) > 1 else ""
    return f"{100 * line.test:.1f}{spread} ({line.lr:g})"
