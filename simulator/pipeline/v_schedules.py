"""Schedules that fold the model into a V: rank r holds stage r on the way down and 2p - 1 - r on the way up.

Rank 0 holds the first and the last stage, so the turn costs no transfer and the last rank starts its backward
at once. Both schedules are written for at least as many microbatches as fill the V (2p); with fewer, the actions
of those that do not exist are left out, which can break no dependency of the others.
"""

from __future__ import annotations

from itertools import accumulate, compress

from simulator.inputs.checks import at_least
from simulator.inputs.placement import chunks_of, placement_of
from simulator.pipeline.actions import Action, Schedule

# What a step is: its kind, its chunk, and the counters that it moves on.
STEPS = {
    f"{kind}{chunk}": (kind, chunk, [f"{letter}{chunk}" for letter in kind])
    for kind in ("F", "B", "W", "BW")
    for chunk in (0, 1)
}


class _Rank:
    """The list of one rank while it is being written, with a counter of microbatches for each kind of step."""

    def __init__(self, r: int, p: int) -> None:
        self.stages = (r, 2 * p - 1 - r)
        self.next = {"F0": 0, "F1": 0, "B0": 0, "B1": 0, "W0": 0, "W1": 0}
        self.actions: list[Action] = []
        self.overlapped: set[int] = set()

    def do(self, *steps: str) -> None:
        """``"F0"``: the next forward of chunk 0; ``"B1"``, ``"W1"``: halves of a backward; ``"BW1"``: all of it."""
        for step in steps:
            kind, chunk, counted = STEPS[step]
            self.actions.append(Action(kind, self.stages[chunk], self.next[counted[0]]))
            for counter in counted:
                self.next[counter] += 1

    def together(self, forward: str, backward: str) -> None:
        """Two steps that the rank runs at once."""
        self.overlapped.add(len(self.actions))
        self.do(forward, backward)

    def pending(self, chunk: int) -> int:
        """How many weight gradients of this chunk have been put off until later."""
        return self.next[f"B{chunk}"] - self.next[f"W{chunk}"]


def zb_v(p: int, m: int, v: int | None = None) -> Schedule:
    """ZB-V (arXiv:2401.10241, section 6): ZB-H2's small bubble with no more activations than 1F1B."""
    at_least(1, ranks=p, microbatches=m)
    ranks = []
    for r in range(p):
        rank, total = _Rank(r, p), max(2 * p - 1, m)
        for _ in range(2 * (p - r) - 1):  # fill the way down
            rank.do("F0")
        for _ in range(r):  # the first microbatches come back up
            rank.do("F1", "F0")
        for _ in range(p - r):
            rank.do("F1", "B1", "W1")
        while rank.next["F1"] < total:  # steady: one of each
            rank.do(*["F0"] * (rank.next["F0"] < total), "B0", "W0", "F1", "B1", "W1")
        for _ in range(r):  # drain: inputs first, since others wait for them
            rank.do("B0", "B1")
        for _ in range(p - r):
            rank.do("B0", "W0")
        rank.do(*["W1"] * rank.pending(1), *["W0"] * rank.pending(0))
        ranks.append(rank)
    return _v_schedule("zb-v", p, m, v, ranks)


def dualpipe_v(p: int, m: int, v: int | None = None) -> Schedule:
    """DualPipeV: DualPipe (arXiv:2412.19437, section 3.2.1) cut in half and folded, as DeepSeek published it.

    In the steady part each rank runs a forward of one chunk together with a backward of the other: while one
    waits for its communication (all-to-all of experts), the other computes.
    """
    at_least(1, ranks=p, microbatches=m)
    ranks = []
    for r in range(p):
        rank, total = _Rank(r, p), max(2 * p, m)
        for _ in range(2 * (p - r - 1)):
            rank.do("F0")
        for _ in range(r + 1):
            rank.do("F0", "F1")
        for _ in range(p - r - 1):  # the backward is split where a rank would wait otherwise
            rank.do("B1", "W1", "F1")
        for i in range(total - 2 * p + r + 1):
            if i == 0 and r == p - 1:  # at the turn B's input is already there, so B need not wait for the F
                rank.do("F0", "BW1")
            else:
                rank.together("F0", "BW1")
            rank.together("F1", "BW0")
        for _ in range(p - r - 1):
            rank.do("BW1")
            rank.together("F1", "BW0")
        for i in range(2 * (r + 1)):  # drain: whole backwards first, then inputs only
            kind = "BW" if i <= r else "B"
            rank.do(f"{kind}{1 - i % 2}")
        owed = [
            1 - i % 2 for i in range(r + 1, 2 * (r + 1))
        ]  # chunks whose weight gradients wait, oldest first
        for _ in range(p - r - 1):
            rank.do(f"W{owed.pop(0)}", "B0")
            owed.append(0)
        rank.do(*[f"W{chunk}" for chunk in owed])
        ranks.append(rank)
    return _v_schedule("dualpipe-v", p, m, v, ranks)


def _v_schedule(name: str, p: int, m: int, v: int | None, ranks: list[_Rank]) -> Schedule:
    """Put the ranks' lists together, without the microbatches from m on."""
    v = chunks_of(name, v)
    actions, overlapped = [], []
    for rank in ranks:
        kept = [action.microbatch < m for action in rank.actions]
        place = list(accumulate(kept, initial=0))  # how many are kept before each
        actions.append(tuple(compress(rank.actions, kept)))
        # The backward of a pair is of an earlier microbatch than its forward: if this is kept, that is, too.
        overlapped.append(frozenset(place[at] for at in rank.overlapped if kept[at]))
    return Schedule(name, p, m, v, tuple(actions), placement_of(name), tuple(overlapped))
