"""Pipeline schedules, from the naive one to zero bubble: each a short function returning a ``Schedule``.

Letters as in the papers: p ranks, m microbatches, v chunks of the model on each rank. Every schedule works for
any p and m. ``1f1b`` with p = 4 and m = 8 (time goes right, a whole backward takes twice as long):

    rank 0   F0 F1 F2 F3 .  .  .  .  .  .  B0    F4 B1    F5 …
    rank 1      F0 F1 F2 .  .  .  .  B0    F3 B1    F4 B2 …
    rank 2         F0 F1 .  .  B0    F2 B1    F3 B2    F4 …
    rank 3            F0 B0    F1 B1    F2 B2    F3 B3    …
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, pairwise

from simulator.inputs.checks import at_least
from simulator.inputs.placement import SCHEDULES, chunks_of
from simulator.pipeline.actions import Action, Schedule
from simulator.pipeline.v_schedules import dualpipe_v, zb_v

MOST_FORWARDS = 500_000  # half a minute of work and a gigabyte; much more would fill any memory

__all__ = ["SCHEDULES", "Action", "Schedule", "make_schedule"]


def one_at_a_time(p: int, m: int, v: int | None = None) -> Schedule:
    """No pipelining: a microbatch goes through all stages and back before the next one enters."""
    v = _checked("one-at-a-time", p, m, v)
    ranks = [
        [action for i in range(m) for action in (Action("F", r, i), Action("BW", r, i))] for r in range(p)
    ]
    return _schedule("one-at-a-time", p, m, v, ranks)


def gpipe(p: int, m: int, v: int | None = None) -> Schedule:
    """All forwards, then all backwards (arXiv:1811.06965): every rank keeps the activations of all m."""
    v = _checked("gpipe", p, m, v)
    ranks = [[Action(kind, r, i) for kind in ("F", "BW") for i in range(m)] for r in range(p)]
    return _schedule("gpipe", p, m, v, ranks)


def one_f_one_b(p: int, m: int, v: int | None = None) -> Schedule:
    """1F1B (PipeDream-Flush, arXiv:2006.09503): a backward as soon as there is one, p - r in flight on rank r."""
    v = _checked("1f1b", p, m, v)
    ranks = []
    for r in range(p):
        forwards = [Action("F", r, i) for i in range(m)]
        backwards = [Action("BW", r, i) for i in range(m)]
        ranks.append(_alternate(forwards, backwards, warm_up=p - 1 - r))
    return _schedule("1f1b", p, m, v, ranks)


def interleaved_1f1b(p: int, m: int, v: int | None = None) -> Schedule:
    """Interleaved 1F1B (arXiv:2104.04473, section 2.2): v chunks a rank, a bubble v times smaller.

    Microbatches travel in rounds of p: a rank takes a whole round through one of its chunks, then through the
    next. The paper wants m to be a multiple of p; here the rounds just become as equal as possible.
    """
    v = _checked("interleaved-1f1b", p, m, v)
    rounds = interleaved_rounds(p, m)
    ranks = []
    for r in range(p):
        stages = range(r, p * v, p)
        forwards = [Action("F", s, i) for round_ in rounds for s in stages for i in round_]
        backwards = [Action("BW", s, i) for round_ in rounds for s in reversed(stages) for i in round_]
        ranks.append(_alternate(forwards, backwards, warm_up=(v - 1) * len(rounds[0]) + 2 * (p - 1 - r)))
    return _schedule("interleaved-1f1b", p, m, v, ranks)


def zb_h1(p: int, m: int, v: int | None = None) -> Schedule:
    """ZB-H1 (arXiv:2401.10241, section 3): the backward for the weights fills 1F1B's bubble.

    As many microbatches in flight as 1F1B; rank r puts r weight gradients off until the end.
    """
    v = _checked("zb-h1", p, m, v)
    ranks = [_split_backward(r, m, warm_up=p - r, postponed=r) for r in range(p)]
    return _schedule("zb-h1", p, m, v, ranks)


def zb_h2(p: int, m: int, v: int | None = None) -> Schedule:
    """ZB-H2 (arXiv:2401.10241, section 3): more forwards first, so that no rank waits for its first backward.

    Up to 2p - 1 microbatches in flight. The step of all ranks takes the same time, but starts and ends shifted.
    """
    v = _checked("zb-h2", p, m, v)
    ranks = [_split_backward(r, m, warm_up=2 * (p - r) - 1, postponed=2 * r) for r in range(p)]
    return _schedule("zb-h2", p, m, v, ranks)


def _alternate(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    """``warm_up`` forwards, then a forward and a backward in turn, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    steady = zip(forwards[warm_up:], backwards, strict=False)
    paired = len(forwards) - warm_up
    return forwards[:warm_up] + [action for pair in steady for action in pair] + backwards[paired:]


def _split_backward(r: int, m: int, warm_up: int, postponed: int) -> list[Action]:
    """``warm_up`` forwards; then B, W and F in turn, where W stays ``postponed`` microbatches behind B."""
    forwards = iter([Action("F", r, i) for i in range(m)])
    actions = list(islice(forwards, warm_up))
    for i in range(m):
        actions.append(Action("B", r, i))
        if i >= postponed:
            actions.append(Action("W", r, i - postponed))
        actions.extend(islice(forwards, 1))
    return actions + [Action("W", r, i) for i in range(max(0, m - postponed), m)]


def interleaved_rounds(p: int, m: int) -> list[range]:
    """m microbatches in rounds of p; where p does not divide m, m // p rounds that are as equal as possible."""
    at_least(1, p=p, m=m)
    count = max(1, m // p)
    edges = [-(-m * k // count) for k in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def _checked(name: str, p: int, m: int, v: int | None) -> int:
    """The chunks a rank, once the numbers have been checked."""
    at_least(1, ranks=p, microbatches=m)
    return chunks_of(name, v)


def _schedule(name: str, p: int, m: int, v: int, ranks: list[list[Action]]) -> Schedule:
    return Schedule(name, p, m, v, tuple(map(tuple, ranks)))


_MAKERS: dict[str, Callable[[int, int, int | None], Schedule]] = {
    "one-at-a-time": one_at_a_time,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved-1f1b": interleaved_1f1b,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "dualpipe-v": dualpipe_v,
}


def make_schedule(name: str, ranks: int, microbatches: int, chunks: int | None = None) -> Schedule:
    """The schedule of that name; ``chunks`` a rank are what the schedule is made for unless given.

    Raises:
        ValueError: the name is unknown, a number is below 1, or the schedule cannot have that many chunks.
    """
    chunks = _checked(name, ranks, microbatches, chunks)
    if (forwards := ranks * microbatches * chunks) > MOST_FORWARDS:
        raise ValueError(f"ranks x microbatches x chunks must be at most {MOST_FORWARDS:,}, not {forwards:,}")
    return _MAKERS[name](ranks, microbatches, chunks)
