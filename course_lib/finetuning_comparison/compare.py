"""The whole comparison: a sweep under the first seed, the choice on the validation part, the other seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from course_lib.data.finetuning_tasks import Task
from course_lib.finetuning_comparison.methods import METHODS, PROBE
from course_lib.finetuning_comparison.probe import STRENGTHS, Probe
from course_lib.finetuning_comparison.results import Line, Run, Runs, best, lines
from course_lib.finetuning_comparison.run import Setting, train_one
from course_lib.models.bert import Bert

Told = Callable[[str, int, int], None]  # what is being done, steps done, steps in all


class Comparison:
    """What is to be run, and what of it is done.

    Args:
        like: a setting whose task, model, steps, batch, samples and device all runs have.
        load: makes the pretrained model and the task; called only if something is left to run.
        lrs: learning rates in place of each method's own.
    """

    def __init__(
        self,
        like: Setting,
        load: Callable[[], tuple[Bert, Task]],
        runs: Runs,
        methods: Sequence[str],
        seeds: Sequence[int],
        lrs: Sequence[float] | None = None,
    ) -> None:
        if not methods or not seeds:
            raise ValueError(f"methods is {methods} and seeds is {seeds}; at least one of each is needed.")
        self.like, self.load, self.runs = like, load, runs
        self.methods, self.seeds, self.lrs = methods, seeds, lrs

    def sweep(self, method: str) -> list[Setting]:
        """Every start with every learning rate, under the first seed."""
        starts = [""] if method == PROBE else METHODS[method].starts
        lrs = STRENGTHS if method == PROBE else self.lrs or METHODS[method].lrs
        like = replace(self.like, method=method, seed=self.seeds[0])
        return [replace(like, start=start, lr=lr) for start in starts for lr in lrs]

    def run(self, told: Told = lambda *_: None) -> list[Line]:
        """Run what is not done yet; returns the table's lines."""
        in_all = sum(len(self.sweep(method)) + len(self.seeds) - 1 for method in self.methods)
        done, wanted = 0, []
        for method in self.methods:
            for setting in self.sweep(method):
                wanted.append(self.one(setting, told, done, in_all))
                done += 1
            chosen = best(wanted[-len(self.sweep(method)) :])
            for seed in self.seeds[1:]:
                setting = replace(self.like, method=method, start=chosen["start"], lr=chosen["lr"], seed=seed)
                wanted.append(self.one(setting, told, done, in_all))
                done += 1
        told("done", done * self.like.steps, in_all * self.like.steps)
        return lines(wanted, self.seeds)

    def one(self, setting: Setting, told: Told, done: int, in_all: int) -> Run:
        if setting in self.runs.rows:
            return self.runs.rows[setting]
        name = " ".join(x for x in (setting.method, setting.start, f"at {setting.lr:g}") if x)
        steps = done * setting.steps

        def on_step() -> None:
            nonlocal steps
            steps += 1
            told(f"{name}, seed {setting.seed}", steps, in_all * setting.steps)

        if setting.method == PROBE:
            return self.runs.add(self.probe.run(setting))
        return self.runs.add(train_one(setting, *self.loaded, on_step))

    @cached_property
    def loaded(self) -> tuple[Bert, Task]:
        return self.load()

    @cached_property
    def probe(self) -> Probe:
        """The frozen features, computed once for all strengths and seeds."""
        return Probe(*self.loaded, self.like.device)
