"""The whole comparison: a sweep under the first seed, the choice on the validation part, the other seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from course_lib.comparison.command import Told
from course_lib.comparison.finetuning.methods import PROBE
from course_lib.comparison.finetuning.probe import Probe
from course_lib.comparison.finetuning.results import Line, Run, Runs, lines
from course_lib.comparison.finetuning.run import Setting, train_one
from course_lib.comparison.finetuning.sweep import rates_of, starts_of
from course_lib.comparison.walk import best, next_try, with_halves
from course_lib.data.finetuning_tasks import Task
from course_lib.models.bert import Bert


class Comparison:
    """What is to be run, and what of it is done.

    Args:
        like: a setting whose task, model, steps, batch, samples, device and matmul all runs have.
        load: makes the pretrained model and the task; called only if something is left to run.
        methods: in the order in which they are run.
        lrs: learning rates in place of each method's own.
        every: try each start with each learning rate, in place of a walk to the best.
        finer: try rates halfway to the neighbours of the best one, too.
    """

    def __init__(
        self,
        like: Setting,
        load: Callable[[], tuple[Bert, Task]],
        runs: Runs,
        methods: Sequence[str],
        seeds: Sequence[int],
        lrs: Sequence[float] | None = None,
        every: bool = False,
        finer: bool = False,
    ) -> None:
        if not methods or not seeds:
            raise ValueError(f"methods is {methods} and seeds is {seeds}; at least one of each is needed.")
        self.like, self.load, self.runs = like, load, runs
        self.methods, self.seeds, self.lrs = methods, seeds, lrs
        self.every, self.finer = every, finer

    def run(self, told: Told = lambda *_: None) -> list[Line]:
        """Run what is not done yet; returns the table's lines.

        All methods are run under the first seed before any is run under the second, so that a comparison that is
        stopped has a whole table with fewer seeds.
        """
        done, at_most = 0, {method: self._at_most(method) for method in self.methods}

        def one(setting: Setting) -> None:
            nonlocal done
            self._one(setting, told, done, sum(at_most.values()) + len(self.methods) * (len(self.seeds) - 1))
            done += 1

        for method in self.methods:
            like = replace(self.like, method=method, seed=self.seeds[0])
            done += len(self.swept(method))
            while (pair := self._next(method)) is not None:
                one(replace(like, start=pair[0], lr=pair[1]))
            at_most[method] = len(self.swept(method))
        for seed in self.seeds[1:]:
            for method in self.methods:
                chosen = best(self.swept(method))
                one(replace(self.like, method=method, start=chosen["start"], lr=chosen["lr"], seed=seed))
        told("done", done * self.like.steps, done * self.like.steps)
        return lines(self.runs.like(self.like), self.seeds, self.lrs)

    def swept(self, method: str) -> list[Run]:
        """The runs of the sweep that are finished."""
        rows, rates = self.runs.like(self.like), with_halves(rates_of(method, self.lrs))
        return [r for r in rows if r["method"] == method and r["seed"] == self.seeds[0] and r["lr"] in rates]

    def _next(self, method: str) -> tuple[str, float] | None:
        starts, rates = starts_of(method), rates_of(method, self.lrs)
        return next_try(starts, rates, self.swept(method), self.every, self.finer)

    def _at_most(self, method: str) -> int:
        starts, rates = len(starts_of(method)), len(rates_of(method, self.lrs))
        return (starts * rates if self.every else starts - 1 + rates) + 2 * self.finer

    def _one(self, setting: Setting, told: Told, done: int, in_all: int) -> None:
        if setting in self.runs.rows:
            return
        name = " ".join(x for x in (setting.method, setting.start, f"at {setting.lr:g}") if x)
        steps = done * setting.steps

        def on_step() -> None:
            nonlocal steps
            steps += 1
            told(f"{name}, seed {setting.seed}", steps, in_all * setting.steps)

        probe = setting.method == PROBE
        self.runs.add(self.probe.run(setting) if probe else train_one(setting, *self.loaded, on_step))

    @cached_property
    def loaded(self) -> tuple[Bert, Task]:
        return self.load()

    @cached_property
    def probe(self) -> Probe:
        """The frozen features, computed once for all strengths and seeds."""
        return Probe(*self.loaded, self.like.device, self.like.matmul)
