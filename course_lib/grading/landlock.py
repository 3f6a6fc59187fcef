"""Linux's Landlock: the graded process and all that it starts cannot write in the course's folders.

Landlock grants and never denies: writing is granted beside the way from the root folder to what is kept, folder by
folder. It needs no privileges and cannot be undone by the process, nor by its children. Where it is missing (other
systems, Linux before 5.13), ``files.py`` puts back what was changed in the course; what was written
elsewhere stays.

The network stays open everywhere: kernels and ranks talk through it. So an answer can reach other machines.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same numbers on every architecture
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_IN_FOLDERS = sum(1 << bit for bit in range(4, 13))  # remove and make files, folders, links, sockets …
_REFER = 1 << 13  # move to another folder


def available() -> bool:
    """Whether this system has it, and allows it."""
    return _version() > 0


def keep(folders: Iterable[Path], writable: Path) -> None:
    """From now on, this process and its children cannot write in ``folders``, except in ``writable``.

    Raises:
        OSError: when the system refuses.
    """
    version, system = _version(), ctypes.CDLL(None, use_errno=True)
    rights = _WRITE_FILE | _IN_FOLDERS
    rights |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    handled = ctypes.c_uint64(rights)
    ruleset = _checked(system.syscall(_CREATE, ctypes.byref(handled), ctypes.sizeof(handled), 0))
    for path in [writable, *_beside(Path("/"), [Path(folder).resolve() for folder in folders])]:
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to open
            _grant(system, ruleset, path, rights)
    _checked(system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _checked(system.syscall(_RESTRICT, ruleset, 0))
    os.close(ruleset)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _grant(system: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISLNK(mode):
            allowed = rights if stat.S_ISDIR(mode) else rights & (_WRITE_FILE | _TRUNCATE)
            rule = _PathBeneath(allowed, handle)
            _checked(system.syscall(_ADD, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0))
    finally:
        os.close(handle)


def _beside(folder: Path, kept: list[Path]) -> Iterator[Path]:
    """All that lies beside the way from ``folder`` to what is kept."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry in kept:
                continue
            if any(path.is_relative_to(entry) for path in kept):
                yield from _beside(entry, kept)
            else:
                yield entry


def _version() -> int:
    if sys.platform != "linux":
        return 0
    return ctypes.CDLL(None, use_errno=True).syscall(_CREATE, None, 0, _VERSION)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
