"""A round: who trains together. It is opened, sealed, and opened again when somebody comes or goes.

A round is one small record, and each change of it is a function ``Round -> Round``. ``rendezvous.py`` says where the
record is, and when an agent changes it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

OPEN, SEALED, ENDED = PHASES = ("open", "sealed", "ended")


@dataclass(frozen=True)
class Round:
    """Who trains together. ``members`` are hosts; sealed, they are in the order of their ranks."""

    number: int = 1
    phase: str = OPEN
    members: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()  # members of the round before, and those who waited: no last call for them
    waiting: tuple[str, ...] = ()  # late comers: they came when the round was sealed
    sentence: str = ""  # why the run ended
    host: str = ""  # where the record is


# ---- the changes of a round; one that does not apply returns the round as it is ----


def join(round: Round, me: str) -> Round:
    if round.phase == OPEN and me not in round.members:
        return replace(round, members=(*round.members, me))
    if round.phase == SEALED and me not in (*round.members, *round.waiting):
        return replace(round, waiting=(*round.waiting, me))
    return round


def seal(round: Round, hosts: Sequence[str]) -> Round:
    """Nobody joins any more; ranks follow the order of the hosts."""
    if round.phase != OPEN:
        return round
    members = tuple(sorted(round.members, key=hosts.index))
    return replace(round, phase=SEALED, members=members, expected=())


def reopen(round: Round, number: int) -> Round:
    """From the sealed round ``number`` to the open round after it; if others have done so already, nothing."""
    if round.phase != SEALED or round.number != number:
        return round
    return Round(number + 1, expected=(*round.members, *round.waiting))


def leave(round: Round, who: str) -> Round:
    """``who`` has left, or is dead. A sealed round cannot go on without a member."""
    if round.phase == SEALED and who in round.members:
        round = reopen(round, round.number)
    others = {k: tuple(m for m in getattr(round, k) if m != who) for k in ("members", "expected", "waiting")}
    return round if round.phase == ENDED else replace(round, **others)


def end(round: Round, sentence: str) -> Round:
    return round if round.phase == ENDED else replace(round, phase=ENDED, sentence=sentence)


@lru_cache(maxsize=64)
def read(text: str) -> Round:
    if not text:
        return Round()
    fields = json.loads(text)
    return Round(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
