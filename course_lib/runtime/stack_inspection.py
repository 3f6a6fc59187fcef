"""What a rank does at this moment, read from the stack of its main thread while that thread runs or waits.

Nothing is counted or wrapped beforehand, so a run without a failure pays nothing for it.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import time
import traceback
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

# Modules that communicate. Their outermost function on the stack is the one that was called.
_COMMUNICATION = (
    "torch.distributed.distributed_c10d",
    "torch.distributed.c10d_logger",
    "torch.utils._contextlib",
    "course_lib.runtime.collectives",
    "course_lib.pipeline.messages",
)
# Functions in which a rank can wait for others, unlike get_rank().
_WAITS = re.compile(
    "all_|broadcast|reduce|gather|scatter|barrier|monitored_barrier|send|recv|isend|irecv|receive|exchange"
    "|batch_isend_irecv|init_process_group|new_group|wait_until_sent"
)
# Arguments that name the other side, in torch's functions and in ours.
_PEERS = (("dst", "to"), ("to", "to"), ("src", "from"), ("source", "from"))


@dataclass(frozen=True)
class Whereabouts:
    """What the main thread of a rank is doing.

    Args:
        call: the collective it waits in (``"all_reduce"``), or ``""`` if it is in none.
        detail: what it was called with: ``"float32[4]"``, ``"from rank 2"``.
        line: the caller's line of code and where it stands.
        issued: how many collectives this rank has issued so far, where the backend counts them.
        cpu: seconds of processor time this rank has used; a rank that only waits uses none.
        members: the ranks of the call's group, empty if these are all ranks.
    """

    call: str
    detail: str
    line: str
    issued: int
    cpu: float = field(compare=False)
    members: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.call:
            return f"waits in {self.call}({self.detail}), at {self.line}"
        return f"is in no collective, at {self.line}"


def whereabouts(thread_id: int) -> Whereabouts:
    """What the thread with this id is doing right now."""
    stack = []
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    return _describe_stack(stack)


def raised_at(error: BaseException) -> Whereabouts | None:
    """Where the exception was raised: in which collective, with which tensor."""
    with contextlib.suppress(Exception):
        return _describe_stack([frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1])
    return None


def _describe_stack(stack: list[FrameType]) -> Whereabouts:
    """What a thread does whose frames these are, the innermost first."""
    call, detail, members, caller = "", "", (), stack[0] if stack else None
    for inner, outer in zip(stack, [*stack[1:], None], strict=True):
        if inner.f_globals.get("__name__") in _COMMUNICATION:
            if _WAITS.match(inner.f_code.co_name):
                call, detail = inner.f_code.co_name, _arguments(inner)
                members = _members(inner) or members
            caller = outer
        elif call:
            break
    if not call and stack:
        caller = _own_code(stack)
        source = _source_line(caller)
        # A collective started earlier: the stack shows the wait, not its name. Other waits (for a program, for
        # a thread) have frames of their own below the learner's line.
        if caller is stack[0] and ".wait()" in source.replace("os.wait()", ""):
            call, detail = "wait", "for an asynchronous collective"
    return Whereabouts(
        call, detail, _describe_line(caller), _collectives_issued(), time.process_time(), members
    )


def _own_code(stack: list[FrameType]) -> FrameType:
    """The innermost frame that is the learner's or the course's, not a library's."""
    for frame in stack:
        if "site-packages" not in frame.f_code.co_filename and "/lib/python" not in frame.f_code.co_filename:
            return frame
    return stack[0]


def _arguments(frame: FrameType) -> str:
    """The argument that tells calls apart: the tensor's dtype and shape, the peer of a send."""
    with contextlib.suppress(Exception):  # a picture of a running frame: anything may be missing
        values = frame.f_locals
        peer = next(
            (f"{word} rank {values[key]}" for key, word in _PEERS if isinstance(values.get(key), int)), ""
        )
        tensor = next((v for v in values.values() if isinstance(v, torch.Tensor)), None)
        shape = "" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        return " ".join(filter(None, (shape, peer)))
    return ""


def _members(frame: FrameType) -> tuple[int, ...]:
    """The global ranks of the call's ``group``, if they are not all."""
    with contextlib.suppress(Exception):
        if (group := frame.f_locals.get("group")) is not None:
            members = tuple(dist.get_process_group_ranks(group))
            return members if len(members) < dist.get_world_size() else ()
    return ()


def _source_line(frame: FrameType) -> str:
    return linecache.getline(
        frame.f_code.co_filename, frame.f_lineno or 0
    ).strip()  # no number while it is set up


def _describe_line(frame: FrameType | None) -> str:
    if frame is None:
        return "the end of its program"
    source = _source_line(frame)
    place = f"{place_of(frame.f_code.co_filename)}, line {frame.f_lineno}"
    return f"{place}: {source}" if source else place


def _collectives_issued() -> int:
    with contextlib.suppress(Exception):  # no process group yet, or a backend that does not count
        world: Any = dist.group.WORLD
        return world._get_sequence_number_for_group()
    return 0


# Files that exist only in the caller's memory (notebook cells), by the name a reader knows them by.
place_names: dict[str, str] = {}


def place_of(filename: str) -> str:
    """How to name a file to its author: the cell's number, or the file's name without its folders."""
    return place_names.get(filename, filename.replace("\\", "/").rpartition("/")[2])


def format_exception(error: BaseException, skip_modules: tuple[str, ...]) -> str:
    """The traceback for the author of the code: cells by number, without the frames of ``skip_modules``."""
    summary = traceback.TracebackException.from_exception(error)
    pending: list[traceback.TracebackException | None] = [summary]
    while pending:  # the exception, then its causes
        part = pending.pop()
        if part is None:
            continue
        frames = [f for f in part.stack if not f.filename.replace("\\", "/").endswith(skip_modules)]
        for f in frames:
            f.filename = place_names.get(f.filename, f.filename)
        part.stack = traceback.StackSummary.from_list(frames)
        pending += [part.__cause__, part.__context__]
    return "".join(summary.format()).rstrip()
