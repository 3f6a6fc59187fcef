"""A save is a folder. Its ``save.json`` says when it was made, what it is, and each other file's size and checksum."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "save.json"


class DamagedSave(ValueError):  # noqa: N818  named as what it is about
    """A save that is not whole; the sentence names the file."""


@dataclass(frozen=True)
class Save:
    """What ``save.json`` says.

    Attributes:
        time: when it was begun, in seconds since 1970.
        about: what the writer wanted to be found again.
        files: name -> bytes and SHA-256.
    """

    folder: Path
    time: float
    about: dict[str, Any]
    files: dict[str, tuple[int, str]]

    def text(self) -> str:
        """For ``save.json``; its second line is the checksum of the first."""
        line = json.dumps({"time": self.time, "about": self.about, "files": self.files})
        return f"{line}\n{sha256(line)}\n"

    def fault(self, share: slice = slice(None)) -> str | None:
        """What is wrong; None: nothing. Of the files in ``share`` every byte is read, of the others the size."""
        to_read = list(self.files)[share]
        for name, (size, checksum) in self.files.items():
            path = self.folder / name
            try:
                if (found := path.stat().st_size) != size:
                    return f"{name} has {found:,} bytes, and {size:,} were written"
                if name in to_read and sha256(path) != checksum:
                    return f"{name} has other bytes than were written"
            except OSError as error:
                return f"{name} cannot be read ({error.strerror})"
        return None


def save_name(step: int, run: str) -> str:
    """``step-00000012-3fa9c1``: two runs that do the same step do not write over each other."""
    return f"step-{step:08d}-{run}"


def new_run() -> str:
    return secrets.token_hex(3)


def read_save(folder: str | os.PathLike) -> Save:
    """What a save says of itself; its other files are not looked at.

    Raises:
        DamagedSave: it has no ``save.json``, or a damaged one.
    """
    folder = Path(folder)
    try:
        line, checksum = (folder / MANIFEST).read_text().splitlines()
        if sha256(line) == checksum:
            return Save(folder, **json.loads(line))
        why = "is damaged"
    except (ValueError, OSError) as error:
        why = "is not there" if isinstance(error, FileNotFoundError) else "is damaged"
    raise DamagedSave(f"{folder} holds no complete checkpoint: {MANIFEST} {why}")


def is_complete(folder: str | os.PathLike) -> bool:
    """Whether all files are there with their sizes; to know whether they are whole takes longer."""
    try:
        return read_save(folder).fault(slice(0)) is None
    except DamagedSave:
        return False


def sha256(content: Path | str) -> str:
    if isinstance(content, str):
        return hashlib.sha256(content.encode()).hexdigest()
    with open(content, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
