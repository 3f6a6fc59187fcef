"""A long run with failures, gone through failure by failure: how much of its time goes into work that is kept."""

from __future__ import annotations

import random
from dataclasses import dataclass

from simulator.inputs.checks import at_least, not_negative, positive

DAY = 86400.0


@dataclass(frozen=True)
class ReportedRun:
    """Failures of a run that were published.

    Args:
        gpus: how many trained together.
        days: for how long the failures were counted.
        failures: interruptions that nobody had planned.
    """

    gpus: int
    days: float
    failures: int

    def __post_init__(self) -> None:
        at_least(1, gpus=self.gpus, failures=self.failures)
        positive(days=self.days)

    @property
    def mtbf(self) -> float:
        """Seconds between two failures, in the mean."""
        return self.days * DAY / self.failures

    @property
    def gpu_mtbf(self) -> float:
        """Seconds between two failures of one GPU (with its share of the rest of the machine)."""
        return self.mtbf * self.gpus


# Llama 3 405B: 466 interruptions in 54 days, 47 of them planned (https://arxiv.org/abs/2407.21783, section 3.3.4).
LLAMA3 = ReportedRun(gpus=16384, days=54, failures=419)


@dataclass(frozen=True)
class GoodputRun:
    """Where the seconds of a simulated run went; the four add up to its length.

    Args:
        kept: computing of which the result is there at the end.
        lost: computing that a failure threw away, and checkpoints that it cut short.
        saving: checkpoints that became complete (only the time for which they stop the computing).
        restarting: from failures until steps went on.
        failures: how many there were.
    """

    kept: float
    lost: float
    saving: float
    restarting: float
    failures: int

    @property
    def goodput(self) -> float:
        return self.kept / (self.kept + self.lost + self.saving + self.restarting)


def simulate_run(
    days: float, mtbf: float, interval: float, cost: float, restart: float, seed: int = 0, behind: float = 0.0
) -> GoodputRun:
    """Draw failures at random, and go from one to the next. All times but ``days`` are seconds.

    Args:
        mtbf: between two failures, in the mean; a failure is as likely at any time.
        interval: of computing between two checkpoints.
        cost: for which a checkpoint stops the computing.
        restart: from a failure until steps go on; a failure in it begins it anew.
        behind: from the end of the stop until the checkpoint is complete, where it is written beside the computing.
    """
    positive(days=days, mtbf=mtbf, interval=interval)
    not_negative(cost=cost, restart=restart, behind=behind)
    at_least(0, seed=seed)
    draw, end = random.Random(seed), days * DAY
    kept = lost = saving = restarting = now = 0.0
    failures = 0
    while now < end:
        down = restart if failures else 0.0
        failure = now + draw.expovariate(1 / mtbf)
        until = min(failure, end)
        restarting += min(down, until - now)
        up = max(0.0, until - now - down)
        periods, rest = divmod(up, interval + cost)
        if failure >= end:  # the run ends here, and nothing is lost
            kept += periods * interval + min(rest, interval)
            saving += periods * cost + max(0.0, rest - interval)
            break
        if periods and rest < behind:  # the last checkpoints were not complete yet
            undone = min(periods, 1 + (behind - rest) // (interval + cost))
            periods, rest = periods - undone, rest + undone * (interval + cost)
        kept, saving, lost = kept + periods * interval, saving + periods * cost, lost + rest
        now, failures = failure, failures + 1
    return GoodputRun(kept, lost, saving, restarting, failures)
