"""The stores in which agents keep a round: a TCPStore at every agent's host, and one in a dict for simulated time."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from torch.distributed import DistError, TCPStore

PORTS = range(20_000, 32_000)  # below those that a system gives to outgoing connections


class Store(Protocol):
    """What is used of a store. A call raises ``ConnectionError`` when the store's host is gone."""

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        """Write ``desired`` if the value is ``expected`` ("": there is none); returns the value after that."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number that starts at 0; returns the sum."""


def split(host: str) -> tuple[str, int]:
    """``"127.0.0.1:41001"`` to ``("127.0.0.1", 41001)``."""
    address, _, port = host.rpartition(":")
    if not address or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f'a host must be an address and a port such as "10.0.0.1:41001", not {host!r}')
    return address, int(port)


def open_store(host: str) -> TCPStore:
    """A store for others at this host; it lives as long as the object that is returned.

    It listens at this address alone: whoever reaches it can change the run, because a store asks for no password.

    Raises:
        ValueError: the port is in use, or the address is none of this machine's.
    """
    address, port = split(host)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        # Left to itself, a TCPStore listens on all networks that the machine is in.
        with socket.create_server((address, port), family=family) as listener:
            ours = os.dup(listener.fileno())  # the store closes it
            return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=ours)
    except (DistError, OSError) as error:
        why = str(error).splitlines()[0].partition(" (while")[0]
        raise ValueError(
            f"no store can be opened at {host}: {why}; choose a free port at an address of this machine"
        ) from None


class Stores:
    """Gives the store of a host, each call of which answers or fails within ``patience`` seconds.

    The time limit of a TCPStore holds for the wait for a key. It does not hold for the wait for an answer: when the
    process of the store was stopped (SIGSTOP), ``get``, ``add``, and the connection itself block for ever. So
    each call runs in a thread of its own, and one that does not come back is given up.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._reached: dict[str, ReachedStore] = {}

    def __call__(self, host: str) -> ReachedStore:
        store = self._reached.get(host)
        if store is None or store.broken:
            with contextlib.suppress(KeyError):
                del self._reached[host]
            store = self._reached[host] = ReachedStore(host, self.patience)
        return store


class ReachedStore:
    """A client of the store at ``host``, whose calls raise ``ConnectionError`` when they are not answered in time."""

    def __init__(self, host: str, patience: float) -> None:
        self.host, self.patience, self.broken = host, patience, False
        address, port = split(host)
        with contextlib.suppress(socket.timeout), socket.create_connection((address, port), timeout=patience):
            pass  # refused at once if nobody is there; a TCPStore would try again until its time limit
        wait = timedelta(seconds=patience)
        self.client = self._ask(
            lambda: TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=wait)
        )

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        return self._ask(lambda: self.client.compare_set(key, expected, desired)).decode()

    def add(self, key: str, amount: int) -> int:
        return self._ask(lambda: self.client.add(key, amount))

    def _ask(self, call: Callable[[], Any]) -> Any:
        answer: list[Any] = []

        def run() -> None:
            try:
                answer.append(call())
            except Exception as error:
                answer.append(error)

        if not self.broken:
            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            thread.join(self.patience)
        if not answer or isinstance(answer[0], (DistError, OSError)):
            self.broken = True
            raise ConnectionError(f"the store at {self.host} does not answer")
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]


class DictStore:
    """A store in a dict. ``alive = False``: its host is gone; ``stopped = True``: its host does not answer."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.alive, self.stopped = True, False

    def compare_set(self, key: str, expected: str, desired: str) -> str:
        self._check()
        value = self.values.get(key, "")
        if value == expected and desired != value:
            value = self.values[key] = desired
        return value

    def add(self, key: str, amount: int) -> int:
        self._check()
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]

    def _check(self) -> None:
        if not self.alive or self.stopped:
            raise ConnectionError("the host of this store does not answer")


def free_hosts(count: int, taken: Sequence[str] = ()) -> list[str]:
    """Hosts on this machine whose ports nobody uses now."""
    found: list[str] = []
    while len(found) < count:
        host = f"127.0.0.1:{random.choice(PORTS)}"
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(split(host))
            if host not in (*found, *taken):
                found.append(host)
    return found
