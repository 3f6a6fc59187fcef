"""The same run under ``torchrun``, to stand beside ``Fleet``: agents on this machine, a journal, and a kill.

``torchrun`` ends all ranks when one is lost and starts its script anew, so the script has to load a checkpoint:
``train_from_checkpoints`` is such a script, and ``python -m course_lib.elastic.torchrun_fleet`` runs it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch
import torch.distributed as dist

from course_lib.data.digits import load_digits
from course_lib.elastic.demo import new_state, summed_step
from course_lib.elastic.journal import Journal, JournalWriter
from course_lib.elastic.stores import free_hosts

# torchrun gives all rounds one store, in which a new worker may read the address of a dead one, and then waits for it
# (pytorch/pytorch#135712). With this switch each round has a store of its own.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **OWN_STORE}


def train_from_checkpoints(folder: str, steps: int, fatal: int, save_every: int = 4) -> None:
    """``demo.train_digits`` as a script for ``torchrun``: it knows only what its last checkpoint says.

    Args:
        folder: of the journal and of the checkpoint.
        fatal: the last rank kills itself in this step, once.
    """
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, labels = load_digits()
    state, saved = new_state(len(labels)), Path(folder) / "state.pt"
    if saved.exists():
        state.load_state_dict(torch.load(saved, weights_only=True))
    writer = JournalWriter(folder, "worker")
    while state.step < steps:
        own = state.sampler.batch(rank, ranks)
        dies = state.step + 1 == fatal and rank == ranks - 1 and not Journal.read(folder).of("kill")
        loss = summed_step(state, images[own], labels[own], SimpleNamespace(journal=writer) if dies else None)
        state.commit(0)
        writer.write("step", step=state.step, loss=loss, rank=rank, ranks=ranks)
        if rank == 0 and state.step % save_every == 0:
            torch.save(state.state_dict(), saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)
    dist.destroy_process_group()


class TorchrunFleet:
    """Agents of ``torchrun`` with one worker each. Leave the ``with``, and all processes and files are gone.

    Args:
        program: what ``torchrun`` is to start, with its arguments; the journal's folder is put behind them.
        agents: how many are started, and the most there may be.
        least: so many are enough for a round.
        settings: for ``--rdzv-conf``.
        restarts: how often workers are started again.
    """

    def __init__(
        self, program: Sequence[str], agents: int, least: int = 1, settings: str = "", restarts: int = 3
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="torchrun-")
        (self.endpoint,) = free_hosts(1)
        self._log = Path(self.folder.name) / "agents.log"
        options = {
            "--nnodes": f"{least}:{agents}",
            "--nproc-per-node": "1",
            "--max-restarts": str(restarts),
            "--rdzv-backend": "c10d",
            "--rdzv-endpoint": self.endpoint,
            "--rdzv-id": "elastic",
            "--local-addr": "127.0.0.1",
            "--monitor-interval": "0.1",
            "--log-dir": f"{self.folder.name}/logs",  # torchrun's own folder outlives an agent that is killed
        }
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *(x for pair in options.items() for x in pair),
        ]
        with open(self._log, "wb") as log:
            self.agents = [
                subprocess.Popen(
                    [
                        *(*command, "--rdzv-conf"),
                        ",".join(filter(None, (settings, f"is_host={str(i == 0).lower()}"))),
                        *(*program, self.folder.name),
                    ],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **ENVIRONMENT},
                )
                for i in range(agents)
            ]

    def __enter__(self) -> TorchrunFleet:
        return self

    def __exit__(self, *error: Any) -> None:
        for i in range(len(self.agents)):
            self.kill_agent(i)
        self.folder.cleanup()

    @property
    def journal(self) -> Journal:
        return Journal.read(self.folder.name)

    def is_alive(self, i: int) -> bool:
        return self.agents[i].poll() is None

    def kill_agent(self, i: int) -> float:
        """SIGKILL an agent and all that it started; returns the time."""
        at, family = time.monotonic(), []
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.is_alive(i):
                agent = psutil.Process(self.agents[i].pid)
                agent.suspend()  # it starts no worker between the look and the kill
                family = [*agent.children(recursive=True), agent]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.agents[i].wait()
        return at

    def wait_until(self, done: Callable[[Journal], Any], timeout: float) -> Any:
        """Wait until something is in the journal; returns what ``done`` returned.

        Raises:
            TimeoutError: it did not happen in time, or before all agents had ended.
        """
        until = time.monotonic() + timeout
        while True:
            ended = not any(map(self.is_alive, range(len(self.agents))))
            if found := done(self.journal):
                return found
            if ended or time.monotonic() > until:
                raise TimeoutError(f"it did not happen; torchrun said: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def wait(self, timeout: float = 120.0) -> Journal:
        """Until all agents have ended well; returns all that happened."""
        self.wait_until(lambda _: all(agent.poll() == 0 for agent in self.agents), timeout)
        return self.journal


if __name__ == "__main__":
    train_from_checkpoints(sys.argv[3], int(sys.argv[1]), int(sys.argv[2]))
