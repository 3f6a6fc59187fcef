"""20.4: what a list of failures leaves of a run, and how often to save."""

import functools
import math
import random

from course_lib.grading.judge import Fact, record

FACTS = {
    "steps": Fact("the number of steps", "Return the number of steps whose work is there…"),
    "kept": Fact("the list of failures", "It stays as it is."),
    "whole": Fact("the choice", "Return a whole number of at least 1"),
    "lost": Fact("thousandths of the useful share lost by the choice", "The mean useful share with…", most=5),
}

Run = record("name every step save restart failures until")
# settings: step, save, restart and between, in seconds; all at once: each alone is little evidence for a mistake
Choices = record("name settings")


def cases(seed: int) -> list[Run | Choices]:
    draw = random.Random(seed)
    return [
        Run("no failure", 5, 10, 4, 30, [], 270),
        Run("no failure, the last step is not finished", 3, 10, 5, 30, [], 119),
        Run("one failure between two checkpoints", 3, 10, 5, 20, [60], 200),
        Run("a failure before the first checkpoint", 10, 10, 5, 20, [95], 300),
        Run("a failure while a checkpoint is written", 3, 10, 8, 20, [70], 220),
        Run("a failure at the moment when a checkpoint is complete", 3, 10, 5, 20, [70], 220),
        Run("a failure during a restart", 3, 10, 5, 40, [80, 100], 300),
        Run("a failure at the moment when a restart ends", 3, 10, 5, 40, [80, 120], 300),
        Run("the run ends during a restart", 3, 10, 5, 40, [80], 100),
        Run("the run ends while a checkpoint is written", 3, 10, 5, 40, [], 67),
        Run("the run ends while a checkpoint of three steps is written", 3, 10, 25, 40, [], 107),
        Run("a checkpoint costs nothing", 1, 7, 0, 12, [50, 90], 200),
        Run("a restart costs nothing", 4, 5, 2, 0, [33, 71], 160),
        Run("a failure at the very beginning", 2, 5, 1, 10, [0], 60),
        Run("a drawn run", draw.randint(2, 20), draw.randint(2, 9), draw.randint(1, 30), draw.randint(1, 60),
            sorted(draw.sample(range(4000), 12)), 4000),
        Choices("eight choices", {
            "save 30 s, a failure every 3 hours": (5.0, 30.0, 300.0, 3 * 3600.0),
            "save 4 s, a failure every 6 hours": (0.5, 4.0, 60.0, 6 * 3600.0),
            "save 300 s, a failure every 40 minutes": (20.0, 300.0, 120.0, 2400.0),
            "save 600 s, a failure every 20 minutes": (10.0, 600.0, 60.0, 1200.0),
            "save 1 s, a failure every 10 days": (2.0, 1.0, 600.0, 864000.0),
            "a step is longer than the best interval": (900.0, 2.0, 60.0, 36000.0),
            "a checkpoint costs nothing": (5.0, 0.0, 100.0, 3600.0),
            "save 30 s, restarts of 40 minutes": (5.0, 30.0, 2400.0, 3 * 3600.0),
        }),
    ]  # fmt: skip


def observe(answer, case: Run | Choices) -> dict:
    useful_steps, best_every = answer
    if isinstance(case, Run):
        steps = useful_steps(*case[1:5], failures := list(case.failures), case.until)
        return {"steps": steps, "kept": "" if failures == case.failures else "`failures` has changed"}
    lost = {}
    for name, setting in case.settings.items():
        got = best_every(*setting)
        if isinstance(got, bool) or got != got or got != int(got) or got < 1:
            return {"whole": f"{name}: the number of steps is {got!r:.40}"}
        lost[name] = math.ceil(1000 * (1 - useful_share(int(got), *setting) / best_share(*setting)) - 1e-6)
    return {"lost": max(lost.values())}


def useful_share(every: int, step: float, save: float, restart: float, between: float) -> float:
    """The mean share of time in steps that are kept (Daly, https://doi.org/10.1016/j.future.2004.11.016)."""
    stretch = every * step + save
    if stretch / between > 600:
        return 0.0
    return every * step / (between * math.exp(restart / between) * math.expm1(stretch / between))


@functools.cache
def best_share(step: float, save: float, restart: float, between: float) -> float:
    every, found = 1.0, 0.0
    last = math.ceil(3 * (between + save) / step) + 2
    while every <= last:  # finely enough: the share is flat where it is best
        found = max(found, useful_share(round(every), step, save, restart, between))
        every = max(every + 1, every * 1.01)
    return found
