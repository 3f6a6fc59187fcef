"""The text of an error on the ranks: the first cause in full, then one line for what the other ranks did."""

from __future__ import annotations

from collections.abc import Mapping

from course_lib.runtime.rank import Raised
from course_lib.runtime.stack_inspection import Whereabouts

SAME_CALLS = "Every rank of a group must call the same collectives, in the same order, with the same shapes."
MEET = "Every send needs a rank that receives its message, and every receive a rank that sends one."
_MESSAGES = ("send", "receive", "recv", "isend", "irecv", "exchange")  # none of them needs all ranks


def first_cause(raised: Mapping[int, Raised]) -> int:
    """The rank whose exception came first; those that only lost a connection are left out if possible."""
    own = [r for r in raised if not raised[r].lost_peer]
    return min(own or raised, key=lambda r: (raised[r].when, r))


def raised_message(raised: Mapping[int, Raised], others: Mapping[int, str]) -> str:
    """The first exception in full, then a line for each thing that the other ranks did.

    Args:
        raised: the exceptions, by rank.
        others: what the remaining ranks did, by rank.
    """
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


def death_message(
    rank: int,
    exit_code: int | None,
    others: Mapping[int, str],
    places: Mapping[int, Whereabouts | None] | None = None,
) -> str:
    """The process of a rank ended, and the rank sent neither a result nor an exception.

    Args:
        others: what became of the other ranks.
        places: what each rank did when the process ended, as far as it is known.
    """
    if exit_code is None:
        why = "closed its connection to the launcher, as a program does that replaces itself by another (os.exec)"
    elif exit_code < 0:
        why = f"was killed by signal {-exit_code}"
        why += " (SIGKILL: often the machine ran out of memory)" if exit_code == -9 else ""
    else:
        why = f"left with exit code {exit_code}, by os._exit or a crash, before its function returned"
    places = {r: place for r, place in sorted((places or {}).items()) if place is not None and place.call}
    if rank in places:
        why += f" in {places[rank].call}({places[rank].detail}), at {places[rank].line}"
    lines = [f"rank {rank} {why}", *_folded(others)]
    calls = {(place.call, place.detail) for place in places.values()}
    if rank in places and len(calls) > 1:  # Gloo aborts a rank that receives more bytes than it expects
        lines += [
            f"rank {r} was in {p.call}({p.detail}), at {p.line}" for r, p in places.items() if r != rank
        ]
        lines += _different_dtypes(places)
        if not all(call.startswith(_MESSAGES) for call, _ in calls):
            lines.append(SAME_CALLS)
    return "\n".join(lines)


def _different_dtypes(places: Mapping[int, Whereabouts]) -> list[str]:
    """One line where the ranks' tensors have not all the same dtype."""
    ranks_of: dict[str, list[int]] = {}
    for rank, place in places.items():
        dtype, bracket, _ = place.detail.partition("[")
        if bracket:
            ranks_of.setdefault(dtype, []).append(rank)
    if len(ranks_of) < 2:
        return []
    who = " and ".join(f"{dtype} on {name_ranks(ranks)}" for dtype, ranks in ranks_of.items())
    return [f"The dtypes differ: {who}. Every rank must give a tensor of the same dtype."]


def hang_message(
    seconds: float, waiting: Mapping[int, Whereabouts | None], returned: list[int], idle: list[int]
) -> str:
    """Which collective each rank waits in, and which ranks never came to it.

    Args:
        waiting: what each unfinished rank does; ``None`` for a rank that did not answer.
        returned: the ranks whose function has returned.
        idle: the ranks that were not asked to run the function (with ``%%rank``).
    """
    lines = [f"the ranks hang: stopped after {seconds:g} s"]
    for rank in sorted([*waiting, *returned, *idle]):
        if rank in returned:
            lines.append(f"  rank {rank}  has returned")
        elif rank in idle:
            lines.append(f"  rank {rank}  does not run this cell")
        else:
            lines.append(f"  rank {rank}  {waiting[rank] or 'does not answer: it is busy outside Python'}")
    return "\n".join([*lines, *_who_never_came(waiting, [*returned, *idle])])


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
        if missing and not call.startswith(_MESSAGES):
            waits = "waits" if len(there) == 1 else "wait"
            of = f" of {name_ranks(list(members))}" if members else ""
            verdict.append(
                f"{name_ranks(missing)} never came to the {call}{of} where {name_ranks(there)} {waits}."
            )
    if all(call.startswith(_MESSAGES) for call, _ in calls):
        verdict += [MEET] if calls else []
    elif len(calls) > 1:
        verdict.append(SAME_CALLS)
    return verdict


def _folded(does: Mapping[int, str]) -> list[str]:
    """One line for all ranks that did the same."""
    fates: dict[str, list[int]] = {}
    for rank, fate in sorted(does.items()):
        fates.setdefault(fate, []).append(rank)
    return [f"{name_ranks(ranks)}: {fate}" for fate, ranks in fates.items()]


def name_ranks(ranks: list[int]) -> str:
    """``rank 2``, or ``ranks 0, 1, 3``."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
