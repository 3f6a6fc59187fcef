"""How rank 0 tells the process that started it how training goes, while it goes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Listener
from typing import Any


class Sender:
    """Goes to the ranks. Called on rank 0, it sends a figure to the listener."""

    def __init__(self, address: Any, key: bytes) -> None:
        self.address, self.key = address, key
        self.connection: Any = None

    def __call__(self, told: dict[str, Any]) -> None:
        if self.connection is None:
            self.connection = Client(self.address, authkey=self.key)
        self.connection.send(told)
        self.connection.recv()  # so that whatever has been told is shown, however the rank ends


@contextmanager
def listening(show: Callable[[dict[str, Any]], None]) -> Iterator[Sender]:
    """Call ``show`` with all that the sender tells inside the ``with``, in a thread of its own."""
    key = os.urandom(16)
    with Listener(authkey=key) as listener:

        def listen() -> None:
            # The connection ends when the rank does, and the listener when the run does.
            with contextlib.suppress(OSError, EOFError), listener.accept() as connection:
                while True:
                    show(connection.recv())
                    connection.send(None)

        threading.Thread(target=listen, daemon=True).start()
        yield Sender(listener.address, key)
