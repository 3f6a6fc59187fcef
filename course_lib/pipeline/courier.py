"""A thread that waits for the sends of a step, so that the rank need not.

Only a thread that waits for a send learns when it has ended. Somebody has to know: then the tensors can be freed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any


class Courier(threading.Thread):
    """Waits for sends to one rank, in their order."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.sends: queue.SimpleQueue = queue.SimpleQueue()
        self.failure: RuntimeError | None = None
        self.start()

    def watch(self, works: Sequence[Any], tensors: Sequence[Any], end: Callable[[], None]) -> None:
        """Keep the tensors until all works have ended, then call ``end``."""
        self.sends.put((works, tensors, end))

    def run(self) -> None:
        while (send := self.sends.get()) is not None:
            works, _, end = send
            try:
                for work in works:
                    work.wait()
                end()
            except RuntimeError as error:  # the receiver is gone
                self.failure = error
            del send, works, _

    def dismiss(self) -> None:
        """No sends will follow."""
        self.sends.put(None)

    def finish(self) -> None:
        """Wait until all has been sent; raises what a send raised."""
        self.dismiss()
        self.join()
        if self.failure is not None:
            raise self.failure
