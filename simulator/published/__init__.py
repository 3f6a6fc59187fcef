"""What papers and projects print of real runs, beside what the simulator predicts for the same plan.

Each row names its source, the device, and whether numbers of that device were fitted to it. ``TARGETS`` hold for the
fitted rows of a group and for the others alike. Groups without a target are reported, with what is not known of them.
"""

from __future__ import annotations

from simulator.published.a100 import (
    flashattention_2_2023,
    korthikanti_2022,
    megatron_2021,
    megatron_2021_table_2,
    zero_bubble_2023,
)
from simulator.published.experts_and_context import experts_and_context
from simulator.published.formulas import activations, zero_2019
from simulator.published.fsdp import fsdp_2023, fsdp_2024, llm_foundry
from simulator.published.row import PublishedRow
from simulator.published.runs import measured_runs

# Mean and worst absolute error. The rows of 2021 to 2023 on A100 share one target, the two held out among them.
TARGETS = {
    "A100 time": (0.022, 0.042),
    "A100 more runs": (0.06, 0.12),
    "A100 ZeRO-3": (0.15, 0.30),
    "A100 FSDP": (0.06, 0.12),
    "A100 FSDP, 8 to 512": (0.06, 0.12),
    "H100 time": (0.06, 0.12),
    "B200 time": (0.06, 0.12),
    "B200 memory": (0.02, 0.06),
    "B200 experts time": (0.06, 0.12),
    "B200 experts memory": (0.02, 0.05),
    "context parallel time": (0.06, 0.12),
    "activations": (0.02, 0.02),
}


def published_rows() -> list[PublishedRow]:
    """Every row, in the order of the papers."""
    papers = (
        megatron_2021,
        korthikanti_2022,
        zero_bubble_2023,
        megatron_2021_table_2,
        flashattention_2_2023,
        fsdp_2023,
        fsdp_2024,
        llm_foundry,
    )
    return [
        *(row for paper in papers for row in paper()),
        *measured_runs(),
        *experts_and_context(),
        *activations(),
        *zero_2019(),
    ]


def summary(rows: list[tuple[PublishedRow, float]]) -> dict[str, dict[str, dict[str, float]]]:
    """Group -> ``"all"``, ``"fitted"`` and ``"held_out"`` -> rows, and the mean and the worst absolute error.

    Where a peer predicts some of the rows, also its name, and ``"ours there"``: our error on the same rows.

    Args:
        rows: each with its error.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for group in dict.fromkeys(row.group for row, _ in rows):
        errors = {"all": [], "fitted": [], "held_out": []}
        for row, error in rows:
            if row.group == group:
                errors["all"].append(abs(error))
                errors["fitted" if row.fitted else "held_out"].append(abs(error))
                if row.peer:
                    name, theirs = row.peer
                    errors.setdefault(name, []).append(abs(row.error(theirs)))
                    errors.setdefault("ours there", []).append(abs(error))
        found[group] = {
            part: {
                "rows": len(some),
                "mean": sum(some) / len(some) if some else 0.0,
                "worst": max(some, default=0.0),
            }
            for part, some in errors.items()
        }
    return found


def misses(found: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Groups whose errors are above their targets: all rows of a group, and its fitted and other rows apart.

    The A100 rows have one target for all of them, that of the whole table.
    """
    missed = []
    for group, (mean, worst) in TARGETS.items():
        for part in ("all",) if group == "A100 time" else ("all", "fitted", "held_out"):
            numbers = found[group][part]
            if numbers["mean"] > mean or numbers["worst"] > worst:
                missed.append(f"{group}, {part.replace('_', ' ')}")
    return missed
