"""Asynchronous model averaging: weights are averaged in the background, and no rank waits for a slower one.

Each rank trains at its own speed. From time to time the weights of all ranks are averaged; while the messages travel,
the rank trains on. When the average arrives, the rank moves by as much as the average differs from the copy that it
had sent, so what it has learnt meanwhile stays. This is Bagua's algorithm (arXiv:2107.01499), there with a second
thread and a lock; here a collective that runs in the background does the same.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from course_lib.compression.hook import assign, flatten
from course_lib.compression.local_sgd import LocalOptimizer
from course_lib.runtime import trace


class AsynchronousAveraging(LocalOptimizer):
    """Keeps an average of all ranks' weights under way, and takes it up as soon as it is there.

    The ranks may make different numbers of steps. Call ``finish()`` on every rank when its training is over: it goes on
    averaging until all ranks have come, and then all weights are equal. What happens in between depends on the
    timing, so two runs differ.

    Args:
        optimizer: the inner one. Its states stay those of each rank.
    """

    def __init__(self, optimizer: Optimizer, group: ProcessGroup | None = None) -> None:
        super().__init__(optimizer, group)
        self.rounds = 0  # averages taken up
        self.work: dist.Work | None = None

    def after_step(self) -> None:
        if self.work is None:
            self._send(finished=False)
        elif self.work.is_completed():
            self._take_up()
            self._send(finished=False)

    @torch.no_grad()
    def finish(self) -> None:
        """Take part in averages until every rank has called this; then all ranks have the same weights."""
        if self.work is not None:
            self._take_up()
        finished = 0
        while finished < dist.get_world_size(self.group):
            self._send(finished=True)
            finished = self._take_up()
        assign(self.parameters, self.average[:-1])  # in the last round nobody has trained

    def _send(self, finished: bool) -> None:
        """Start the average of a copy of the weights. One more element counts the ranks that have finished."""
        self.sent = flatten(self.parameters)
        flag = self.sent.new_full((1,), float(finished))
        self.average = torch.cat([self.sent / dist.get_world_size(self.group), flag])
        end = trace.begin("communication", "average weights")
        self.work = dist.all_reduce(self.average, group=self.group, async_op=True)
        self.work.get_future().add_done_callback(end)

    def _take_up(self) -> int:
        """Wait for the average and move by its difference from what was sent; how many ranks have finished."""
        self.work.wait()
        self.work = None
        self.rounds += 1
        moved: Tensor = flatten(self.parameters) + (self.average[:-1] - self.sent)
        assign(self.parameters, moved)
        return round(self.average[-1].item())
