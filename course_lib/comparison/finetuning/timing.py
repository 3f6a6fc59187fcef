"""How long a step of each method takes, measured in turns, so that a busy machine is equally unfair to all.

The seconds in ``runs.jsonl`` were measured hours apart. Here each round takes one step of every method after the other,
and what is kept is the median, over the rounds, of a step's time divided by that of full fine-tuning in the same round.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch

from course_lib.comparison.finetuning.methods import METHODS, PROBE
from course_lib.comparison.finetuning.run import Setting, matmul_precision, prepared, step, trimmed
from course_lib.data.finetuning_tasks import Task
from course_lib.models.bert import Bert

FULL = "full"


def time_steps(
    like: Setting,
    bert: Bert,
    task: Task,
    methods: Sequence[str],
    rounds: int = 7,
    on_step: Callable[[], None] = lambda: None,
) -> dict:
    """Seconds of full fine-tuning's step, and of each method's in relation to it; the first round only warms up.

    All models are held at once. Every step is one on the training part's first batch.
    """
    names = list(dict.fromkeys([FULL, *(name for name in methods if name != PROBE)]))
    batch = trimmed(tuple(task.train.first(like.batch)), like.device)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with matmul_precision(like.matmul):
        ready = {}
        for name in names:
            start = next(iter(METHODS[name].starts))
            ready[name] = prepared(replace(like, method=name, start=start, lr=1e-6), bert, len(task.classes))
        for _ in range(rounds + 1):
            for name, (model, optimizer) in ready.items():
                begun = time.perf_counter()
                step(model, optimizer, batch).item()  # .item() waits for a GPU
                seconds[name].append(time.perf_counter() - begun)
                on_step()
    whole = seconds[FULL][1:]
    return {
        "date": date.today().isoformat(),
        "threads": torch.get_num_threads(),
        "device": like.device,
        "matmul": like.matmul,
        "rounds": rounds,
        "tokens": list(batch[0].shape),
        "full_seconds": statistics.median(whole),
        "ratios": {
            name: statistics.median(own / full for own, full in zip(found[1:], whole, strict=True))
            for name, found in seconds.items()
        },
    }


def keep_times(path: Path, times: dict) -> None:
    """Write the times; ratios of methods that were not measured this time stay."""
    before = read_times(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    ratios = (before["ratios"] if before else {}) | times["ratios"]
    path.write_text(json.dumps(times | {"ratios": ratios}, indent=2) + "\n", encoding="utf-8")


def read_times(path: Path) -> dict | None:
    """What was kept; None: no times were measured yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
