"""What the learner reads when ranks fail: the first real cause first, everyone else in a line."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.runtime.rank import Raised
from course_lib.runtime.stack_inspection import Whereabouts


class RankError(RuntimeError):
    """A run on several ranks failed. The message holds the failing rank's traceback.

    Attributes:
        rank: the rank that failed first, or None when all of them hung.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank

    def _render_traceback_(self) -> list[str]:
        """In a notebook, the rank's own traceback is the story; the launcher's frames would bury it."""
        return str(self).splitlines()


# How a rank that is innocent fails when a peer's connection is gone.
_PEER_LOST = ("connection closed", "connection reset", "peer", "broken pipe", "timed out waiting")


def first_cause(raised: Mapping[int, Raised]) -> int:
    """The rank whose exception came first, those that only noticed a lost peer left out if possible."""
    own = [r for r in raised if not any(word in raised[r].message.lower() for word in _PEER_LOST)]
    return min(own or raised, key=lambda r: (raised[r].when, r))


def raised_message(raised: Mapping[int, Raised], others: Mapping[int, str]) -> str:
    """The first exception in full, then a line for each thing that the other ranks did."""
    first = first_cause(raised)
    cause = raised[first]
    lines = [f"rank {first} raised {cause.kind}: {cause.message}", "", cause.text, ""]
    does = {
        rank: f"raised {e.kind}: {e.message.splitlines()[0] if e.message else ''}"
        for rank, e in raised.items()
    }
    does = {rank: "raised the same" if text == does[first] else text for rank, text in does.items()}
    del does[first]
    return "\n".join([*lines, *_folded({**others, **does})]).rstrip()


def death_message(rank: int, exit_code: int | None, others: Mapping[int, str]) -> str:
    """A rank's process ended without a word."""
    if exit_code is not None and exit_code < 0:
        why = f"was killed by signal {-exit_code}"
        why += " (SIGKILL: often the machine ran out of memory)" if exit_code == -9 else ""
    else:
        why = f"left with exit code {exit_code}, by os._exit or a crash, before its function returned"
    return "\n".join([f"rank {rank} {why}", *_folded(others)])


def hang_message(seconds: float, waiting: Mapping[int, Whereabouts | None], returned: list[int]) -> str:
    """Which collective each rank waits in, and who never came."""
    lines = [f"the ranks hang: stopped after {seconds:g} s"]
    for rank in sorted([*waiting, *returned]):
        if rank in returned:
            lines.append(f"  rank {rank}  has returned")
        else:
            lines.append(f"  rank {rank}  {waiting[rank] or 'does not answer: it is busy outside Python'}")
    return "\n".join([*lines, *_who_never_came(waiting, returned)])


def _who_never_came(waiting: Mapping[int, Whereabouts | None], returned: list[int]) -> list[str]:
    calls: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for rank, where in sorted(waiting.items()):
        if where is not None and where.call:
            calls.setdefault((f"{where.call}({where.detail})", where.members), []).append(rank)
    absent = sorted([*returned, *(r for r, where in waiting.items() if where is None or not where.call)])
    verdict = []
    for (call, members), there in calls.items():
        elsewhere = [r for other, ranks in calls.items() if other != (call, members) for r in ranks]
        missing = sorted(r for r in absent + elsewhere if not members or r in members)
        if missing and not call.startswith(("send", "recv", "isend", "irecv")):
            waits = "waits" if len(there) == 1 else "wait"
            of = f" of {_ranks(list(members))}" if members else ""
            verdict.append(f"{_ranks(missing)} never came to the {call}{of} where {_ranks(there)} {waits}.")
    if len(calls) > 1:
        verdict.append(
            "Every rank of a group must call the same collectives, in the same order, with the same shapes."
        )
    return verdict


def _folded(does: Mapping[int, str]) -> list[str]:
    """Ranks with the same fate share a line."""
    fates: dict[str, list[int]] = {}
    for rank, fate in sorted(does.items()):
        fates.setdefault(fate, []).append(rank)
    return [f"{_ranks(ranks)}: {fate}" for fate, ranks in fates.items()]


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
