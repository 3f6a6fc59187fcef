"""Tells a rank that failed from one that only lost the connection to it."""

from __future__ import annotations

import dis

import torch.distributed as dist

# In what Gloo's and NCCL's C++ says. A path of a file of Gloo's is enough: its transport knows nothing but connections.
_SAID = ("gloo/transport", "connection", "timed out", "broken pipe", "socket", "nccl")


def lost_a_peer(error: BaseException | None) -> bool:
    """Whether an exception, or what caused it, says that a connection to another rank, or to a store, was lost.

    PyTorch has a type for that where NCCL or a store fails, and Gloo raises a plain ``RuntimeError``. So what a
    ``RuntimeError`` says counts, but only where C++ code raised it: the message of a ``raise`` in Python may hold any
    word.
    """
    while error is not None:
        if isinstance(error, (dist.DistError, ConnectionError)):
            return True
        if type(error) is RuntimeError and not _raised_in_python(error):
            said = str(error).lower()
            if any(word in said for word in _SAID):
                return True
        error = error.__cause__
    return False


def _raised_in_python(error: BaseException) -> bool:
    """Whether the innermost frame was at a ``raise``, and not at a call of C code."""
    last = error.__traceback__
    if last is None:  # it was never raised here
        return True
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
