"""Finds out that ranks hang: the time limit has passed, or every unfinished rank waits for another."""

from __future__ import annotations

import time
from multiprocessing.connection import wait

from course_lib.runtime.errors import RankError
from course_lib.runtime.processes import RankProcess
from course_lib.runtime.report import hang_message
from course_lib.runtime.stack_inspection import Whereabouts

DEADLOCK_AFTER = 5.0  # seconds in which every unfinished rank sits in the same collective as before
IDLE_CPU = 0.05  # seconds of processor time: a rank that moved data in those seconds used more
FIRST_QUESTION = 1.0  # seconds: ranks that finish before are never asked what they do
ASK_EVERY = 0.5  # seconds


class HangWatch:
    """Asks unfinished ranks from time to time what they do.

    Args:
        members: the ranks that run something.
        timeout: seconds after which the run counts as hung; ``None`` for no limit.
        idle: ranks that are alive, but run nothing.
    """

    def __init__(self, members: list[RankProcess], timeout: float | None, idle: list[int]) -> None:
        self.members, self.timeout, self.idle = members, timeout, idle
        self.began = self.moved = self.asked = time.monotonic()
        self.before: dict[int, Whereabouts | None] = {}
        for process in members:
            process.where, process.asked = None, False

    def look(self) -> None:
        """Raise ``RankError`` if the ranks hang; to be called about twice a second."""
        missing, now = self._missing(), time.monotonic()
        if not missing:
            return
        if self.timeout is not None and now - self.began > self.timeout:
            raise RankError(self._describe())
        if self.all_wait_for(DEADLOCK_AFTER):
            raise RankError(self._describe())
        if now - self.began > FIRST_QUESTION and now - self.asked > ASK_EVERY:
            self.ask()

    def ask(self) -> None:
        """Ask every unfinished rank what it does; the answers arrive later."""
        self.asked = time.monotonic()
        for process in self._missing():
            process.ask_where()

    def all_wait_for(self, seconds: float) -> bool:
        """Whether all unfinished ranks have waited in the same collective for so long, without doing anything."""
        missing, now = self._missing(), time.monotonic()
        if not missing:
            return False
        places = {p.rank: p.where for p in missing}
        if places != self.before or not all(_idle(self.before[r], place) for r, place in places.items()):
            self.before, self.moved = places, now
            return False
        # An answer that is still due may be another: the old ones prove nothing.
        return now - self.moved > seconds and not any(p.asked for p in missing)

    def _missing(self) -> list[RankProcess]:
        return [p for p in self.members if not p.is_done()]

    def _describe(self) -> str:
        """Ask once more, then say what each rank waits for."""
        seconds = round(time.monotonic() - self.began)
        until = time.monotonic() + 1.0
        missing = self._missing()
        for process in missing:
            process.where = None
            process.ask_where(again=True)
        while any(p.where is None for p in missing) and time.monotonic() < until:
            wait([p.channel for p in missing], timeout=0.1)
            for process in missing:
                process.receive()
        returned = [p.rank for p in self.members if p.returned is not None]
        return hang_message(seconds, {p.rank: p.where for p in missing}, returned, self.idle)


def _idle(before: Whereabouts | None, now: Whereabouts | None) -> bool:
    """Whether a rank that waits in a collective has computed nothing since it was asked before."""
    return before is not None and now is not None and bool(now.call) and now.cpu - before.cpu < IDLE_CPU
