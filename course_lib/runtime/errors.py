"""What a caller catches when ranks fail or are stopped, made from what the ranks sent."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

from course_lib.runtime.processes import RankProcess
from course_lib.runtime.report import first_cause, raised_message


class RankError(RuntimeError):
    """A run on several ranks failed. The message holds the failing rank's traceback.

    Attributes:
        rank: the rank that failed first, or None when the ranks hung.
        ranks_alive: whether the ranks still run and hold their variables (only those of ``%%ranks`` can).
        reconnected: whether living ranks were connected anew, so that their older process groups are closed.
    """

    def __init__(self, message: str, rank: int | None = None, ranks_alive: bool = False) -> None:
        super().__init__(message)
        self.rank, self.ranks_alive, self.reconnected = rank, ranks_alive, False

    def add(self, sentence: str) -> None:
        """Put a sentence at the end of the message."""
        self.args = (f"{self}\n{sentence}",)

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the failing rank's traceback, without the frames of the process that started it."""
        return str(self).splitlines()


def error_of_raised(members: list[RankProcess], ranks_alive: bool = False) -> RankError:
    """The error for the first exception; the exception itself is its ``__cause__``."""
    raised = {p.rank: p.raised for p in members if p.raised}
    first = first_cause(raised)
    error = RankError(raised_message(raised, what_others_did(members, alive=ranks_alive)), first, ranks_alive)
    if (pickled := raised[first].pickled) is not None:
        with contextlib.suppress(Exception, SystemExit):  # what a rank can read back, this process need not
            error.__cause__ = pickle.loads(pickled)
    return error


def what_others_did(
    members: list[RankProcess], but: RankProcess | None = None, alive: bool = False
) -> dict[int, str]:
    """What became of the ranks that did not cause the failure.

    Args:
        but: the rank that did.
        alive: whether the ranks go on running.
    """
    did = {}
    for p in members:
        if p is but or (p.raised and not but):
            continue
        if p.raised:
            did[p.rank] = "lost the connection to it"
        elif p.returned is not None:
            did[p.rank] = "had returned"
        else:
            doing = f"waiting in {p.where.call}" if p.where and p.where.call else "running"
            did[p.rank] = f"was {doing}" if alive else f"stopped while {doing}"
    return did


def read_result(process: RankProcess) -> Any:
    try:
        return pickle.loads(process.returned or b"")
    except (Exception, SystemExit) as error:  # some objects can be written but not read back
        raise RankError(
            f"the result of rank {process.rank} cannot be read back ({type(error).__name__}: {error}): "
            "return tensors, numbers, strings, or lists and dicts of them",
            process.rank,
        ) from error


def show_as_one_line(stop: KeyboardInterrupt, line: str) -> None:
    """Let a notebook show this one line instead of a traceback. A script ends as after any Ctrl-C."""
    stop._render_traceback_ = lambda: [line]  # pyright: ignore[reportAttributeAccessIssue]
