"""Saves that survive: written beside, moved into place when they are whole, and checked before they are read.

So a process that is killed at any moment, or a full disk, takes no older save away.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from course_lib.checkpoints.folders import UNFINISHED, hidden, lock, move, recover, remove, sync
from course_lib.checkpoints.manifest import MANIFEST, DamagedSave, Save, is_complete, read_save, sha256

T = TypeVar("T")


class DiskFull(OSError):  # noqa: N818  named as what it is about
    """There was no room for a save; those that were there before are as they were."""


def write_save(
    folder: str | os.PathLike,
    write: Callable[[Path], Iterable[str]],
    about: dict[str, Any],
    *,
    together: bool = False,
) -> None:
    """Make the save ``folder``, in place of an older one of that name.

    Args:
        write: gets an empty folder beside it, and returns the names of the files that it has written there.
        about: what JSON can hold; rank 0's counts.
        together: all ranks call this, and see the same folder; each writes its own files. Rank 0's ``folder`` counts.

    Raises:
        DiskFull: there is no room.
        ValueError: ``folder`` holds something that is no save. Whatever is raised, all ranks raise; what was written
            is removed, and older saves are as they were.
    """
    folder, began = Path(folder).absolute(), time.time()
    first = not together or dist.get_rank() == 0
    part, locked = hidden(folder, UNFINISHED), None

    def begin() -> tuple[Path, Path]:
        nonlocal locked
        if first:
            folder.parent.mkdir(parents=True, exist_ok=True)
            recover(folder.parent)
            if folder.exists() and not (folder / MANIFEST).exists() and any(folder.iterdir()):
                raise ValueError(f"{folder} holds something else, so no checkpoint was written there")
            part.mkdir()
            locked = lock(part, create=True)
        return folder, part

    def finish() -> None:
        if first:
            files = {name: entry for of_rank in written for name, entry in of_rank.items()}
            locked.write(Save(folder, began, about, files).text().encode())
            locked.flush()
            os.fsync(locked.fileno())
            sync(part)
            move(part, folder)

    try:
        folder, part = _everywhere(begin, folder, together)[0]
        written = _everywhere(lambda: {n: _synced(part / n) for n in write(part)}, folder, together)
        _everywhere(finish, folder, together)
    except BaseException:
        if first:
            shutil.rmtree(part, ignore_errors=True)
        raise
    finally:
        if locked is not None:
            locked.close()


def _everywhere(action: Callable[[], T], folder: Path, together: bool) -> list[T]:
    """What ``action`` returns on each rank. If it raises on one, it raises on all."""
    outcome, failed = None, None
    try:
        outcome = action()
    except Exception as error:
        failed = DiskFull(f"No space left on the disk: {folder} was not saved") if _is_full(error) else error
    everyone = [(outcome, failed and str(failed), isinstance(failed, DiskFull))]
    if together:
        everyone *= dist.get_world_size()
        dist.all_gather_object(everyone, everyone[0])
    if full := next((said for _, said, is_full in everyone if is_full), None):
        raise DiskFull(full)
    if failed is not None:
        raise failed
    if broken := next((said for _, said, _ in everyone if said is not None), None):
        raise RuntimeError(f"{folder} was not saved, because another rank failed: {broken}")
    return [outcome for outcome, _, _ in everyone]


def _is_full(error: BaseException | None) -> bool:
    """PyTorch tells of a full disk only in what its exception came from."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _synced(path: Path) -> tuple[int, str]:
    """Bytes and checksum of a file that is on the disk now."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return path.stat().st_size, sha256(path)


# ---- find and read ----------------------------------------------------------------------------------------------


def checked(folder: str | os.PathLike, *, together: bool = False) -> Save:
    """A save of which every byte is as it was written.

    Args:
        together: all ranks call this, and share the reading.

    Raises:
        DamagedSave: it is not whole, and the sentence says why; on all ranks.
    """
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
    if rank == 0:
        recover(Path(folder).absolute().parent)
    if together:
        dist.barrier()
    save, said = None, None
    try:
        save = read_save(folder)
        if fault := save.fault(slice(rank, None, ranks)):
            said = f"{folder} is damaged: {fault}"
    except DamagedSave as error:
        said = str(error)
    everyone = [said]
    if together:
        everyone *= ranks
        dist.all_gather_object(everyone, said)
    if said := next((one for one in everyone if one), None):
        raise DamagedSave(said)
    return save


def newest_first(folder: str | os.PathLike) -> list[Path]:
    """The saves ``step-…`` in a folder, damaged ones too, by the time at which they were begun."""
    found = []
    for path in Path(folder).glob("step-*"):
        with suppress(OSError):  # another process has just removed it
            found.append((path.stat().st_mtime, path))
            with suppress(DamagedSave):
                found[-1] = (read_save(path).time, path)
    return [path for _, path in sorted(found, reverse=True)]


def complete_saves(folder: str | os.PathLike) -> list[Save]:
    """Those whose files are all there with their sizes, newest first. Whether they are whole takes longer to know."""
    found = []
    for path in newest_first(folder):
        with suppress(DamagedSave):
            if not (save := read_save(path)).fault(slice(0)):
                found.append(save)
    return found


def newest_whole(folder: str | os.PathLike, *, together: bool = False) -> Save | None:
    """The newest save in a folder that is whole. A warning names each newer one, and says why it is skipped.

    Args:
        together: all ranks call this, and share the reading; rank 0 warns.
    """
    first = not together or dist.get_rank() == 0
    if first:
        recover(folder)
    found = [newest_first(folder) if first else []]
    if together:
        dist.broadcast_object_list(found, src=0)
    for path in found[0]:
        try:
            return checked(path, together=together)
        except DamagedSave as error:
            if first:
                warnings.warn(f"skipped: {error}", stacklevel=2)
    return None


def keep_newest(folder: str | os.PathLike, number: int) -> None:
    """Remove what is older than the newest complete saves, of which ``number`` stay."""
    complete = 0
    for path in newest_first(folder):
        if complete >= number:
            remove(path)
        complete += is_complete(path)
