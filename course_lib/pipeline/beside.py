"""Work that runs beside other work of the same rank: while one waits for a message, the other computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Beside(threading.Thread):
    """Begins at once. If nobody asks for the result, because the other work has failed, it holds nobody up."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.work, self.failure = work, None
        self.start()

    def run(self) -> None:
        try:
            self.found = self.work()
        except Exception as failure:
            self.failure = failure

    def result(self) -> Any:
        """Wait for the end; returns or raises what the work did."""
        self.join()
        if self.failure is not None:
            raise self.failure
        return self.found
