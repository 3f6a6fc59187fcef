"""Ranks joined by a network that is really slow: each in a network namespace of its own, with ``tc tbf`` between them.

For root on Linux, with ``ip`` and ``tc``. ``Namespaces`` makes the network and takes it away again. A rank calls
``join`` and gets a process group whose messages cross the slow link.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

CLONE_NEWNET = 0x40000000


def is_possible() -> bool:
    """Whether this process may make namespaces and limit a link."""
    if os.name != "posix" or os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        return False
    try:
        with namespaces(1, 1e9, f"try{os.getpid() % 10000}"):
            return True
    except subprocess.CalledProcessError:
        return False


@contextmanager
def namespaces(ranks: int, bandwidth: float, name: str) -> Iterator[list[str]]:
    """Names of one namespace for each rank, joined by a bridge. Each sends at most ``bandwidth`` bytes a second."""
    bridge, made = f"{name}br", [f"{name}{rank}" for rank in range(ranks)]
    try:
        _run(f"ip link add {bridge} type bridge")
        _run(f"ip link set {bridge} up")
        for rank, space in enumerate(made):
            _run(f"ip netns add {space}")
            _run(f"ip link add {space}o type veth peer name eth9 netns {space}")
            _run(f"ip link set {space}o master {bridge} up")
            _run(f"ip -n {space} addr add 10.199.77.{rank + 1}/24 dev eth9")
            _run(f"ip -n {space} link set eth9 up")
            _run(f"ip -n {space} link set lo up")
        limit(made, bandwidth)
        yield made
    finally:
        for space in made:
            with suppress(subprocess.CalledProcessError):
                _run(f"ip netns del {space}")
        with suppress(subprocess.CalledProcessError):
            _run(f"ip link del {bridge}")


def limit(spaces: list[str], bandwidth: float) -> None:
    """Let each namespace send ``bandwidth`` bytes a second from now on. A burst of 2 ms may pass at once."""
    burst = max(16_000, round(bandwidth * 0.002))
    rate = f"rate {round(bandwidth * 8)}bit burst {burst} latency 500ms"
    for space in spaces:
        _run(f"ip netns exec {space} tc qdisc replace dev eth9 root tbf {rate}")


def join(space: str) -> dist.ProcessGroup:
    """Move this rank's new connections into the namespace; a group of all ranks that is connected through it.

    The connections of the default group were made before, so they stay outside: results can return over them.
    """
    with (Path("/run/netns") / space).open() as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns({space})")
    os.environ["GLOO_SOCKET_IFNAME"] = "eth9"
    return dist.new_group(backend="gloo", timeout=timedelta(minutes=5))


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)
