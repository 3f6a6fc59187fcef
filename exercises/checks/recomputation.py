"""Chapter 08: a loss of rows, what an autograd function holds unseen, and an answer that takes too long."""

import ctypes
import threading
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.utils._pytree import tree_leaves

from course_lib.observe.ledgers.alive import Alive

VOCABULARY = 512
TOO_SLOW = object()


def in_time(seconds: float, function: Callable, *args):
    """What the function returns or raises, or ``TOO_SLOW``: then it is stopped, so that the check can end."""
    outcome: dict = {}

    def run() -> None:
        try:
            outcome["result"] = function(*args)
        except BaseException as error:  # raised again below, in the thread of the check
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        return TOO_SLOW
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


class LossOfRows(nn.Module):
    """A sum over rows that counts its runs; its weights have gradients of an earlier batch."""

    def __init__(self, with_dropout: bool) -> None:
        super().__init__()
        self.frozen, self.head = nn.Linear(24, 24).requires_grad_(False), nn.Linear(24, VOCABULARY)
        self.with_dropout, self.runs = with_dropout, 0
        for weight in self.head.parameters():
            weight.grad = torch.ones_like(weight)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        self.runs += 1
        x = dropout(self.frozen(x), 0.5, True) if self.with_dropout else x
        return cross_entropy(self.head(x), wanted, reduction="sum")


def unseen(node, alive: Alive) -> int:
    """Bytes of the tensors that the caller's node holds and that no operator made, such as random states."""
    held = [getattr(node, "__dict__", {}), getattr(node, "saved_tensors", ())]
    storages = {t.untyped_storage() for t in tree_leaves(held) if isinstance(t, Tensor)}
    return sum(s.nbytes() for s in storages if s not in alive.known and s not in alive.made)
