"""The check of 20.4: what a list of failures leaves of a run, and how often to save."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from course_lib.grading.report import Report, check

Done = Callable[[int, int, int, int, list[int], int], int]
Choose = Callable[[float, float, float, float], int]

STEPS = "Return the number of steps whose work is there at the time `until`"
LOST = "All work since the last complete checkpoint is lost"
ANEW = "If a failure comes during a restart, the restart begins anew."
COMPLETE = "A checkpoint that is complete at the very moment of a failure is not lost."
MEANWHILE = "No step is computed meanwhile."
WHOLE = "Return a whole number of at least 1"
TARGET = "The mean useful share with your number is at most half a percent lower than with the best one."
MOST = 5  # thousandths


class Case(NamedTuple):
    name: str
    every: int
    step: int
    save: int
    restart: int
    failures: list[int]
    until: int

    @property
    def given(self) -> tuple[Any, ...]:
        return (*self[1:5], list(self.failures), self.until)


LONG = "the run ends while a checkpoint is written that takes longer than two steps"
RULES = {
    "a failure during a restart": ANEW,
    "a failure at the moment when a checkpoint is complete": COMPLETE,
    LONG: MEANWHILE,
}


def _cases(seed: int) -> list[Case]:
    """All but the last are fixed, and any two mistakes below differ in one of these."""
    draw = random.Random(seed)
    return [
        Case("no failure", 5, 10, 4, 30, [], 270),
        Case("no failure, the last step is not finished", 3, 10, 5, 30, [], 119),
        Case("one failure between two checkpoints", 3, 10, 5, 20, [60], 200),
        Case("a failure before the first checkpoint", 10, 10, 5, 20, [95], 300),
        Case("a failure while a checkpoint is written", 3, 10, 8, 20, [70], 220),
        Case("a failure at the moment when a checkpoint is complete", 3, 10, 5, 20, [70], 220),
        Case("two failures far from each other", 4, 6, 3, 15, [50, 170], 300),
        Case("a failure during a restart", 3, 10, 5, 40, [80, 100], 300),
        Case("a failure at the moment when a restart ends", 3, 10, 5, 40, [80, 120], 300),
        Case("the run ends during a restart", 3, 10, 5, 40, [80], 100),
        Case("the run ends while a checkpoint is written", 3, 10, 5, 40, [], 67),
        Case(LONG, 3, 10, 25, 40, [], 107),
        Case("a checkpoint costs nothing", 1, 7, 0, 12, [50, 90], 200),
        Case("a restart costs nothing", 4, 5, 2, 0, [33, 71], 160),
        Case("a failure at the very beginning", 2, 5, 1, 10, [0], 60),
        Case("a drawn run", draw.randint(2, 20), draw.randint(2, 9), draw.randint(1, 30), draw.randint(1, 60),
             sorted(draw.sample(range(4000), 12)), 4000),
    ]  # fmt: skip


SETTINGS = (
    ("save 30 s, a failure every 3 hours", 5.0, 30.0, 300.0, 3 * 3600.0),
    ("save 4 s, a failure every 6 hours", 0.5, 4.0, 60.0, 6 * 3600.0),
    ("save 300 s, a failure every 40 minutes", 20.0, 300.0, 120.0, 2400.0),
    ("save 600 s, a failure every 20 minutes", 10.0, 600.0, 60.0, 1200.0),
    ("save 1 s, a failure every 10 days", 2.0, 1.0, 600.0, 864000.0),
    ("a step is longer than the best interval", 900.0, 2.0, 60.0, 36000.0),
    ("a checkpoint costs nothing", 5.0, 0.0, 100.0, 3600.0),
    ("save 30 s, restarts of 40 minutes", 5.0, 30.0, 2400.0, 3 * 3600.0),
)


@check
def check_20_4(report: Report, useful_steps: Done, best_every: Choose) -> None:
    for case in _cases(report.seed()):
        with report.case(case.name):
            report.equal(
                "the steps that are done",
                useful_steps(*case.given),
                replay(*case.given),
                mistakes=MISTAKES,
                given=case.given,
                task=RULES.get(case.name, LOST if case.failures else STEPS),
            )
    _check_choice(report, best_every)


def _check_choice(report: Report, best_every: Choose) -> None:
    chosen: dict[str, int] = {}
    for (
        name,
        *setting,
    ) in SETTINGS:  # first all: what was chosen in every case is evidence for the likely mistake
        with report.case(name):
            got = best_every(*setting)
            fine = not isinstance(got, bool) and got == got and got == int(got) and got >= 1
            report.true(
                fine, "a whole number of at least 1", f"the number of steps is {got!r:.40}", task=WHOLE
            )
            chosen[name] = int(got)
    all_ = tuple(chosen.get(name) for name, *_ in SETTINGS)
    for name, *setting in SETTINGS:
        if name in chosen:
            with report.case(name):
                report.at_most(
                    "thousandths of the useful share lost by the choice",
                    lost_by(chosen[name], *setting),
                    MOST,
                    mistakes={text: (lambda a, s, p=p: _as_chosen(p, a, s)) for text, p in SLOW.items()},
                    given=(all_, setting),
                    task=TARGET,
                )


def _as_chosen(
    program: Callable[..., int], chosen: Sequence[int | None], setting: Sequence[float]
) -> int | None:
    """None where the program does not choose as the answer did in every case: one number is little evidence."""
    own = tuple(program(*one) for _, *one in SETTINGS)
    alike = all(b is not None and abs(a - b) <= max(1, 0.002 * a) for a, b in zip(own, chosen, strict=True))
    return (
        lost_by(chosen[[list(one) for _, *one in SETTINGS].index(list(setting))], *setting) if alike else None
    )


def useful_share(every: int, step: float, save: float, restart: float, between: float) -> float:
    """The mean share of time that goes into steps that are kept, where failures are as likely at any time.

    A stretch of ``w`` seconds without a failure takes ``between × (exp(w / between) - 1)`` in the mean, and each
    failure costs a restart, during which the next may come: that is a factor ``exp(restart / between)``
    (Daly, https://doi.org/10.1016/j.future.2004.11.016).
    """
    stretch = every * step + save
    if stretch / between > 600:
        return 0.0
    return every * step / (between * math.exp(restart / between) * math.expm1(stretch / between))


@cache
def best_share(step: float, save: float, restart: float, between: float) -> float:
    limit = math.ceil(3 * (between + save) / step) + 2
    factor, every, found = 1.01, 1.0, 0.0
    while every <= limit:  # finely enough: the share is flat where it is best
        found = max(found, useful_share(round(every), step, save, restart, between))
        every = max(every + 1, every * factor)
    return found


def lost_by(every: int, *setting: float) -> int:
    best = best_share(*setting)
    return math.ceil(1000 * (1 - useful_share(every, *setting) / best) - 1e-6)


# ---- the reference, and likely mistakes as variations of it -----------------------------------------------------


def replay(
    every: int,
    step: int,
    save: int,
    restart: int,
    failures: Sequence[int],
    until: int,
    mistake: str = "",
) -> int:
    """Go from one failure to the next; in between, whole periods of ``every`` steps and one save."""
    start = kept = 0
    first = True
    if mistake == "none in a restart":
        failures = _apart(failures, restart)
    for end in [*failures, until]:
        if first or mistake == "restarts are free":
            begin = start
        else:
            begin = max(begin, start) + restart if mistake == "restarts queue" else start + restart
        if mistake == "work in the restart" and not first:
            begin = start
        first = False
        cost = 0 if mistake == "saves are free" else save
        period = every * step + cost
        time = max(0, end - begin)
        periods, rest = divmod(time, period) if period else (0, 0)
        if mistake == "an end is too late" and end != until and periods and rest == 0:
            periods, rest = periods - 1, period
        late = mistake == "begun at the failure" and rest == every * step
        if late or (mistake.startswith("begun") and rest > every * step):
            periods, rest = periods + 1, 0
        begun = rest // step if mistake == "steps beside a save" else min(every, rest // step)
        if mistake == "part of a step" and rest < every * step and rest % step:
            begun += 1
        if (end == until and mistake != "only saved steps") or mistake == "nothing is lost":
            kept += periods * every + begun
        elif mistake == "all is lost" and end != until:
            kept = 0
        elif mistake == "only the last stretch":
            kept = periods * every if end > begin else kept
        else:
            kept += periods * every
        start = end
    return kept


def _apart(failures: Sequence[int], restart: int) -> list[int]:
    """Those that do not come during the restart of another one."""
    found: list[int] = []
    for failure in failures:
        if not found or failure >= found[-1] + restart:
            found.append(failure)
    return found


def _by(mistake: str) -> Callable[..., int]:
    return lambda *given: replay(*given, mistake)


def _rounded(seconds: float, step: float) -> int:
    return max(1, round(seconds / step))


MISTAKES: dict[str, Callable[..., int]] = {
    "when a failure loses nothing but the time of the restart": _by("nothing is lost"),
    "when a failure loses everything, also what is in a checkpoint": _by("all is lost"),
    "when restarts take no time": _by("restarts are free"),
    "when checkpoints take no time": _by("saves are free"),
    "when a checkpoint counts from the moment when it is begun": _by("begun is saved"),
    "when a checkpoint counts from the moment of its beginning, also if a failure comes at that moment": _by(
        "begun at the failure"
    ),
    "when the steps in earlier checkpoints are forgotten at each failure": _by("only the last stretch"),
    "when a checkpoint that is complete at the moment of the failure does not count": _by(
        "an end is too late"
    ),
    "when a failure during a restart does not begin the restart anew": _by("restarts queue"),
    "when a failure during a restart changes nothing": _by("none in a restart"),
    "when steps are counted while a checkpoint is written": _by("steps beside a save"),
    "when the steps behind the last checkpoint do not count at `until`": _by("only saved steps"),
    "when a step counts that has been begun": _by("part of a step"),
}
SLOW: dict[str, Callable[..., int]] = {
    "when the number of steps is √(2 · save · between) / step in every case": lambda step, save, restart, between: (
        _rounded(math.sqrt(2 * save * between), step)
    ),
    "when the 2 is missing under the root of Young's formula": lambda step, save, restart, between: _rounded(
        math.sqrt(save * between), step
    ),
    "when Young's interval is not divided by the seconds of a step": lambda step, save, restart, between: (
        _rounded(math.sqrt(2 * save * between), 1)
    ),
    "when a checkpoint is written after every step": lambda step, save, restart, between: 1,
    "when `save` is subtracted from Young's interval": lambda step, save, restart, between: _rounded(
        math.sqrt(2 * save * between) - save, step
    ),
    "when the restart is subtracted from `between` in Young's formula": lambda step, save, restart, between: (
        _rounded(math.sqrt(2 * save * (between - restart)), step)
    ),
    "when the restart is added to `between` in Young's formula": lambda step, save, restart, between: (
        _rounded(math.sqrt(2 * save * (between + restart)), step)
    ),
    "when the restart is counted as a cost of each checkpoint": lambda step, save, restart, between: _rounded(
        math.sqrt(2 * (save + restart) * between), step
    ),
    "when half of the mean time between failures is taken": lambda step, save, restart, between: _rounded(
        between / 2, step
    ),
}
