"""Three ways to keep a state that can be gone back to: written while training waits, written beside it, or in a peer's
memory. What differs is how long training stands still, and what has to be lost before the copy is lost, too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checkpoints.manifest import Save, new_run, save_name
from course_lib.checkpoints.saves import (
    checked,
    complete_saves,
    keep_newest,
    newest_first,
    newest_whole,
    write_save,
)

STATE = "state.pt"


class Checkpoints:
    """States in a folder, each a save (``course_lib.checkpoints``) with the file ``state.pt``.

    Args:
        keep: how many of the newest stay.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 checkpoint must stay")
        self.folder, self.keep, self.run = Path(folder), keep, new_run()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._writing: threading.Thread | None = None
        self._failed: Exception | None = None

    def save(self, state: Mapping[str, Any], step: int) -> None:
        """Synchronous: training waits until the file is on the disk."""
        self.wait()
        self._write(state, step)

    def save_async(self, state: Mapping[str, Any], step: int) -> None:
        """Training waits only for a copy in memory; a thread writes it while the next steps run.

        If the last state is still being written, training waits for that, too: two copies would need twice the memory.
        """
        self.wait()
        copy = deepcopy(dict(state))  # the next step changes the tensors in place
        self._writing = threading.Thread(target=self._write_in_thread, args=(copy, step))
        self._writing.start()

    def wait(self) -> None:
        """Until nothing is being written; raises what writing raised."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error

    def steps(self) -> list[int]:
        """Of which there is a complete checkpoint, in order."""
        return sorted(save.about["step"] for save in complete_saves(self.folder))

    def load(self, step: int | None = None) -> dict[str, Any]:
        """The state of a step; None: the newest, by its time, that is whole. A warning names newer ones, skipped.

        Raises:
            ValueError: there is none, or that of the step is damaged.
        """
        save = self.newest() if step is None else self._of_step(step)
        if save is None:
            raise ValueError(
                f"{self.folder} has checkpoints of steps {self.steps()}, and none of {step or 'any step'}"
            )
        return self.read(save)

    def newest(self) -> Save | None:
        """The newest that is whole; ``about["step"]`` is its step."""
        return newest_whole(self.folder)

    def read(self, save: Save) -> dict[str, Any]:
        return torch.load(save.folder / STATE, map_location="cpu", weights_only=True)

    def _of_step(self, step: int) -> Save | None:
        of_step = (path for path in newest_first(self.folder) if path.name.startswith(save_name(step, "")))
        return next(map(checked, of_step), None)

    def _write_in_thread(self, state: Mapping[str, Any], step: int) -> None:
        try:
            self._write(state, step)
        except Exception as error:
            self._failed = error

    def _write(self, state: Mapping[str, Any], step: int) -> None:
        def write(part: Path) -> list[str]:
            with open(part / STATE, "wb") as file:
                torch.save(dict(state), file)
            return [STATE]

        write_save(self.folder / save_name(step, self.run), write, {"step": step})
        keep_newest(self.folder, self.keep)


class PeerMemory:
    """Each rank keeps a copy of its left neighbour's shard, so one rank can be lost without a file being read.

    The last two copies are kept, because a rank that is killed during an exchange leaves some ranks with the new copies
    and some without. Two neighbours that are lost at once take both copies of a shard with them. Then a file is needed.
    """

    def __init__(self) -> None:
        self.kept: dict[int, dict[int, Tensor]] = {}  # step -> rank -> its shard
        self.ranks: dict[int, int] = {}  # step -> of how many
        self.about: dict[int, Any] = {}  # step -> what was kept beside the shards

    def exchange(
        self, shard: Tensor, step: int, group: dist.ProcessGroup | None = None, about: Any = None
    ) -> None:
        """Send this rank's shard to the right and receive the left neighbour's, (n,) each. All ranks call it.

        Args:
            about: kept beside the shard; the same on all ranks, such as the sampler's state.
        """
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        left, right = (rank - 1) % ranks, (rank + 1) % ranks
        own, theirs = shard.detach().clone(), torch.empty_like(shard)
        if ranks > 1:
            both = [
                dist.P2POp(dist.isend, own, group=group, group_peer=right),
                dist.P2POp(dist.irecv, theirs, group=group, group_peer=left),
            ]
            for work in dist.batch_isend_irecv(both):
                work.wait()
        self.kept[step] = {left: theirs, rank: own} if ranks > 1 else {rank: own}
        self.ranks[step], self.about[step] = ranks, deepcopy(about)
        for old in sorted(self.kept)[:-2]:
            self._drop(old)

    def forget_after(self, step: int) -> None:
        """Training goes on from ``step``, so the copies of later steps are not of this training any more."""
        for later in [s for s in self.kept if s > step]:
            self._drop(later)

    def _drop(self, step: int) -> None:
        for of_step in (self.kept, self.ranks, self.about):
            of_step.pop(step, None)

    def recover(self, group: dist.ProcessGroup | None = None) -> tuple[int, list[Tensor]]:
        """From those who are left: the newest step of which all shards are there, and the shards, on every rank.

        Afterwards ``about[step]`` is there on every rank, too.

        Raises:
            ValueError: of some rank's shard no copy is left; every rank raises it.
        """
        everyone: list[Any] = [None] * dist.get_world_size(group)
        # A step may have been done twice, by different numbers of ranks: their shards do not fit together.
        here = {(step, self.ranks[step]): list(shards) for step, shards in self.kept.items()}
        dist.all_gather_object(everyone, here, group=group)
        lost: list[int] = []
        for step, ranks in sorted({key for held in everyone for key in held}, reverse=True):
            holders = [
                next((h for h, held in enumerate(everyone) if r in held.get((step, ranks), ())), None)
                for r in range(ranks)
            ]
            lost = lost or [r for r, holder in enumerate(holders) if holder is None]
            if None not in holders:
                self.about[step] = self._send(self.about.get(step), holders[0], group)
                own = self.kept.get(step, {})
                return step, [self._send(own.get(r), holder, group) for r, holder in enumerate(holders)]
        raise ValueError(f"no copy is left of the shards of ranks {lost}: load a checkpoint from a file")

    def _send(self, own: Any, holder: int, group: dist.ProcessGroup | None) -> Any:
        """What ``holder`` has, on every rank."""
        box = [own if dist.get_rank(group) == holder else None]
        dist.broadcast_object_list(box, group=group, group_src=holder)
        return box[0]
