"""The whole comparison: a sweep under the first seed, the choice on the validation part, the other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Protocol

from course_lib.comparison.command import Told
from course_lib.comparison.compression.results import Line, Runs, chosen_lr, lines, next_lr, swept
from course_lib.comparison.compression.run import Setting, train_one
from course_lib.comparison.compression.tasks import TASKS
from course_lib.comparison.runs import Run
from course_lib.runtime.world import World


class Trainer(Protocol):
    """Makes runs; ``close()`` ends what it has started."""

    def __call__(self, setting: Setting) -> Run: ...

    def close(self) -> None: ...


class OnRanks:
    """Trains on ranks that are started at the first run and live until ``close()``."""

    def __init__(self) -> None:
        self.world: World | None = None

    def __call__(self, setting: Setting) -> Run:
        if self.world is None:
            self.world = World(setting.ranks, "gloo", quiet=True)
        return train_one(self.world, setting, TASKS[setting.task]())

    def close(self) -> None:
        if self.world is not None:
            self.world.stop()


def compare(
    like: Setting,
    runs: Runs,
    methods: Sequence[str],
    seeds: Sequence[int],
    lrs: Sequence[float],
    told: Told = lambda *_: None,
    trainer: Trainer | None = None,
) -> list[Line]:
    """Run what is not done yet; returns the table's lines.

    All methods are run under the first seed before any is run under the second, so that a comparison that is
    stopped has a whole table with fewer seeds.

    Args:
        like: a setting whose task, steps, batch and ranks all runs have.
        methods: in the order in which they are run.
        seeds: under the first one the learning rates are chosen.
        lrs: learning rates that may be tried.
    """
    in_all = len(methods) * (len(lrs) + len(seeds) - 1)
    done = 0
    with closing(trainer or OnRanks()) as train:

        def one(setting: Setting) -> None:
            nonlocal done
            told(f"{setting.method} at {setting.lr:g}, seed {setting.seed}", done, in_all)
            if setting not in runs.rows:
                runs.add(train(setting))
            done += 1

        for method in methods:
            done += len(swept(runs.like(like), method, seeds[0], lrs))
            while (lr := next_lr(runs.like(like), method, seeds[0], lrs)) is not None:
                one(replace(like, method=method, lr=lr, seed=seeds[0]))
            in_all -= len(lrs) - len(swept(runs.like(like), method, seeds[0], lrs))
        for seed in seeds[1:]:
            for method in methods:
                lr = chosen_lr(runs.like(like), method, seeds[0], lrs)
                one(replace(like, method=method, lr=lr, seed=seed))
    told("done", done, done)
    return lines(runs.like(like), seeds, lrs)
