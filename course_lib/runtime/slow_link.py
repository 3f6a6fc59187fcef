"""A link that is slow on purpose, so that one computer can stand for machines that are far from each other.

Nothing is slowed in the network. The rank sleeps until the message would have arrived, and says so here.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch.distributed as dist

from course_lib.runtime import native
from simulator.inputs.checks import not_negative, positive_or_infinite
from simulator.predict.collective_traffic import sent_bytes

# module, function, collective, place of the whole tensor among its arguments, messages that follow each other
_COLLECTIVES: tuple[tuple[ModuleType, str, str, int, Callable[[int], int]], ...] = (
    (dist, "all_reduce", "all-reduce", 0, lambda p: 2 * (p - 1)),
    (dist, "broadcast", "broadcast", 0, lambda p: (p - 1).bit_length()),
    (dist, "all_to_all_single", "all-to-all", 1, lambda p: p - 1),
    (native, "all_gather", "all-gather", 0, lambda p: p - 1),
    (native, "reduce_scatter", "reduce-scatter", 1, lambda p: p - 1),
)


class DelayedWork:
    """A message that is there when it has come and when a slow link would have brought it."""

    def __init__(self, works: list[Any], due: float) -> None:
        self.works, self.due = works, due

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        time.sleep(max(0.0, self.due - time.monotonic()))

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works) and time.monotonic() >= self.due

    def get_future(self) -> DelayedWork:
        return self

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back when the message is there, from another thread, as the future of a collective does."""
        timer = threading.Timer(max(0.0, self.due - time.monotonic()), lambda: (self.wait(), callback(self)))
        timer.daemon = True
        timer.start()


@contextmanager
def slow_link(
    bandwidth: float, latency: float = 0.0, fast: Collection[dist.ProcessGroup] = ()
) -> Iterator[None]:
    """Inside the ``with``, this rank's messages take as long as on a link of ``bandwidth`` bytes a second.

    Messages queue: one is sent when those before it have left. A collective takes its messages' latencies and the
    time of the bytes that this rank sends. Sends and receives issued as a batch count together.

    Args:
        bandwidth, latency: bytes a second, seconds a message.
        fast: groups in which a collective is not slowed, such as the ranks of a node.

    It sees calls of ``dist.all_reduce``, ``broadcast``, ``all_to_all_single`` and ``batch_isend_irecv``, and of
    ``native.all_gather`` and ``native.reduce_scatter``. PyTorch's own DDP sends from C++, so it is not slowed.

    Raises:
        ValueError: the bandwidth is not above 0, or the latency is below 0.
    """
    positive_or_infinite(bandwidth=bandwidth)
    not_negative(latency=latency)
    free = [0.0]  # when the link has sent all that was given to it

    def due(size: float, messages: int) -> float:
        free[0] = max(free[0], time.monotonic()) + messages * latency + size / bandwidth
        return free[0]

    def slowed(
        original: Callable[..., Any], collective: str, place: int, messages: Callable[[int], int]
    ) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def call(*args: Any, **named: Any) -> Any:
            given = signature.bind(*args, **named).arguments
            if any(given.get("group") is group for group in fast):
                return original(*args, **named)
            async_op = given.pop("async_op", False)
            p, whole = dist.get_world_size(given.get("group")), list(given.values())[place]
            until = due(sent_bytes(collective, whole.nbytes, p), messages(p))
            work = DelayedWork([original(**given, async_op=True)], until)
            return work if async_op else work.wait()

        return call

    def batch(operations: list[dist.P2POp]) -> list[DelayedWork]:
        size = sum(o.tensor.nbytes for o in operations if o.op is dist.isend)
        return [DelayedWork(batch_isend_irecv(operations), due(size, 1))]

    batch_isend_irecv = dist.batch_isend_irecv
    with ExitStack() as stack:
        for module, name, collective, place, messages in _COLLECTIVES:
            slow = slowed(getattr(module, name), collective, place, messages)
            stack.enter_context(mock.patch.object(module, name, slow))
        stack.enter_context(mock.patch.object(dist, "batch_isend_irecv", batch))
        yield
