"""Every message of a collective: who sent what to whom, recorded as it is issued, and put in rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.runtime import launch
from simulator.predict.message_rounds import Event, Message, in_rounds

SHORT = 64  # elements up to which a message's content is kept


@contextmanager
def record_messages() -> Iterator[list[Event]]:
    """The sends and receives that this thread issues inside the ``with``, in their order.

    Ranks are counted in the default group. Only point-to-point messages are seen: a collective of
    ``torch.distributed`` does its sending out of sight.
    """
    events: list[Event] = []
    with _Recorder(events):
        yield events


class _Recorder(TorchDispatchMode):
    def __init__(self, events: list[Event]) -> None:
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kind = {"c10d::send": "send", "c10d::recv_": "receive"}.get(func._schema.name)
        if kind:
            (tensor,), group, peer = args[:3]
            group = group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group)
            peer = dist.get_process_group_ranks(group)[peer]
            self.events.append(Event(kind, peer, tensor.nbytes, _content(tensor) if kind == "send" else ()))
        return func(*args, **(kwargs or {}))


def _content(tensor: Tensor) -> tuple[int, ...]:
    short = tensor.numel() <= SHORT and not tensor.is_floating_point()
    return tuple(tensor.flatten().tolist()) if short else ()


@dataclass(frozen=True)
class Trace:
    """One collective as it ran: what each rank held before and after, and every message in its round.

    Contents are labels (see ``labels``); a rank that gets nothing back holds ``()`` after.
    """

    before: list[tuple[int, ...]]
    after: list[tuple[int, ...]]
    messages: list[Message]

    @property
    def ranks(self) -> int:
        return len(self.before)

    @property
    def rounds(self) -> int:
        return max((m.round for m in self.messages), default=0)


def labels(rank: int, ranks: int) -> Tensor:
    """A tensor of one element a chunk, int64 ``(ranks,)``, in which adding is collecting.

    Chunk c of rank r is the number with the single bit ``c * ranks + r``: the bits of a sum say whose chunks
    are in it.
    """
    if not 1 <= ranks <= 7:
        raise ValueError(f"labels fit into 63 bits for 1 to 7 ranks, not {ranks}")
    return torch.tensor([1 << (c * ranks + rank) for c in range(ranks)])


def read_label(value: int, ranks: int) -> tuple[int, frozenset[int]]:
    """The chunk a label belongs to, and the ranks whose parts are in it.

    Raises:
        ValueError: parts of different chunks were added up, or nothing is there.
    """
    bits = [b for b in range(ranks * ranks) if value >> b & 1]
    chunks = {b // ranks for b in bits}
    if len(chunks) != 1:
        raise ValueError(f"{value:#x} mixes the chunks {sorted(chunks)}: a label has one")
    return chunks.pop(), frozenset(b % ranks for b in bits)


def trace_collective(
    collective: Callable[[Tensor], Tensor | None], ranks: int = 4, start: str = "whole", root: int = 0
) -> Trace:
    """Run ``collective`` on labelled tensors on real ranks, and keep every message.

    Args:
        collective: called with each rank's tensor, int64 ``(ranks,)``, or ``(1,)`` for ``start="shard"``.
        start: what ranks hold before: ``"whole"`` tensors, their own ``"shard"`` (rank r chunk r), the
            ``"sum"`` of all ranks' chunks r (what a reduce-scatter leaves), or the whole tensor at the ``"root"``
            alone (the others pass zeros, which are not drawn).
    """
    if start not in ("whole", "shard", "sum", "root"):
        raise ValueError(f"start must be 'whole', 'shard', 'sum' or 'root', not {start!r}")
    # Labels lie on the CPU, also where every rank has a GPU and launch would choose NCCL.
    results = launch(_run, ranks, args=(collective, start, root), quiet=True, backend="gloo")
    before, after, logs = zip(*results, strict=True)
    return Trace(list(before), list(after), in_rounds(logs))


def _run(collective: Callable[[Tensor], Tensor | None], start: str, root: int) -> tuple[Any, ...]:
    me, ranks = dist.get_rank(), dist.get_world_size()
    mine = labels(me, ranks)
    if start == "sum":
        mine = torch.stack([labels(r, ranks) for r in range(ranks)]).sum(0)
    if start in ("shard", "sum"):
        mine = mine[me : me + 1]
    if start == "root" and me != root:
        mine = torch.zeros_like(mine)
    with record_messages() as events:
        result = collective(mine)
    return tuple(mine.tolist()), () if result is None else tuple(result.tolist()), events
