"""How often to save: what a checkpoint interval costs in time, and which interval costs least.

Young (https://doi.org/10.1145/361147.361115) and Daly (https://doi.org/10.1016/j.future.2004.11.016). Failures come at
any time with the same probability, ``mtbf`` seconds apart in the mean. All times are seconds.
"""

from __future__ import annotations

import math

from simulator.inputs.checks import not_negative, positive

LONGEST = (
    600.0  # times mtbf: beyond it a stretch without a failure never comes, and its exponential overflows
)


def young(cost: float, mtbf: float) -> float:
    """The interval with the least loss, seconds of computing between two checkpoints: the root of 2 cost mtbf.

    It is the minimum of cost / interval + interval / (2 mtbf), and good while the cost is much less than mtbf.
    """
    not_negative(cost=cost)
    positive(mtbf=mtbf)
    return math.sqrt(2 * cost * mtbf)


def lost_share(interval: float, cost: float, restart: float, mtbf: float, behind: float = 0.0) -> float:
    """The share of the time that is lost, to first order: saving, work done again, restarts.

    Args:
        interval: seconds of computing between two checkpoints.
        cost: seconds for which a checkpoint stops the computing.
        restart: seconds from a failure until steps go on.
        behind: seconds from there until the checkpoint is complete, where it is written beside the computing.
    """
    positive(interval=interval, mtbf=mtbf)
    not_negative(cost=cost, restart=restart, behind=behind)
    return cost / interval + (interval / 2 + behind + restart) / mtbf


def useful_share(interval: float, cost: float, restart: float, mtbf: float) -> float:
    """The share of the time that goes into work which is kept, without an approximation.

    A stretch of w seconds without a failure takes mtbf (exp(w / mtbf) - 1) seconds in the mean; a failure also costs
    a restart, in which the next failure may come, and that multiplies the time by exp(restart / mtbf).
    """
    positive(interval=interval, mtbf=mtbf)
    not_negative(cost=cost, restart=restart)
    stretch, again = (interval + cost) / mtbf, restart / mtbf
    if stretch + again > LONGEST:
        return 0.0
    return interval / (mtbf * math.exp(again) * math.expm1(stretch))
