"""How the folder of a save gets its name at once, and how what a killed process has left is found.

While a save is written, its folder has a hidden name and its ``save.json`` is locked. The lock ends with the process:
an unfinished folder without a lock belongs to nobody.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path
from typing import BinaryIO

from course_lib.checkpoints.manifest import MANIFEST, is_complete

try:
    import fcntl
except ImportError:  # Windows: nothing can be locked, so nothing is removed
    fcntl = None

UNFINISHED, REPLACED = "unfinished", "replaced"  # how hidden names end


def hidden(folder: Path, kind: str) -> Path:
    """A name of its own beside ``folder``."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.{kind}")


def lock(folder: Path, *, create: bool = False) -> BinaryIO:
    """``save.json``, locked until it is closed or the process ends.

    Args:
        create: make the file. It is then returned also where the file system has no locks.

    Raises:
        OSError: another process holds the lock.
    """
    file = open(folder / MANIFEST, "xb" if create else "rb+")  # noqa: SIM115  whoever holds the lock closes it
    try:
        if fcntl is None:
            raise OSError("no locks")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if not create:
            file.close()
            raise
    return file


def move(part: Path, folder: Path) -> None:
    """A folder cannot replace another at once: between two renames the old one waits under a hidden name."""
    if not (folder / MANIFEST).exists():
        part.rename(folder)
    else:
        with lock(folder):
            folder.rename(old := hidden(folder, REPLACED))
            part.rename(folder)
            delete(old)
    sync(folder.parent)


def remove(folder: Path) -> None:
    """At no moment a part of a save is left under its name."""
    folder.rename(old := hidden(folder, REPLACED))
    delete(old)


def delete(old: Path) -> None:
    (old / MANIFEST).unlink(missing_ok=True)  # first, so that nobody takes the rest for a save
    shutil.rmtree(old, ignore_errors=True)


def recover(folder: str | os.PathLike) -> None:
    """Remove what killed processes left in ``folder``; what was whole, but had not got its name yet, gets it."""
    for kind in (UNFINISHED, REPLACED):
        for part in sorted(Path(folder).glob(f".*.{kind}")):
            final = part.with_name(part.name[1:].rsplit(".", 2)[0])
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                if (part / MANIFEST).exists():
                    stack.enter_context(lock(part))  # an OSError if it is being written
                if not final.exists() and is_complete(part):
                    part.rename(final)
                else:
                    delete(part)


def sync(folder: Path) -> None:
    """Names, too, must be on the disk; not every file system can be asked for it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
