"""What options accept, where click's own types accept too much: files that can be written, numbers that are numbers."""

from __future__ import annotations

from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

DIGITS = 15  # of a whole number; more than any count in a training run has


class Output(click.Path):
    """A file to write, or with ``folder`` a folder to write in: tried before an hour of work, and left as it is."""

    def __init__(self, *, folder: bool = False) -> None:
        super().__init__(file_okay=not folder, dir_okay=folder, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not str(value).strip():
            self.fail("must be the name of what is written, and is empty", param, ctx)
        path = Path(str(super().convert(value, param, ctx)))
        try:
            check_writable(path, folder=self.dir_okay)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return path


def check_writable(path: Path, *, folder: bool = False) -> None:
    """Raise a ValueError if this file, or files in this folder, could not be written. Nothing is changed.

    A folder may be missing: it is made later, together with those above it. That of a file must be there.
    """
    try:
        if folder:
            path = path.absolute()
            above = next(place for place in (path, *path.parents) if place.exists())
        else:
            above = path.parent
            if path.exists() and not path.is_file():
                raise ValueError(f"{path} is no file that can be written: give another name")
        if not above.is_dir():
            raise ValueError(f"there is no folder {above} to write in: make it, or give another name")
        if path.is_file():
            path.open("ab").close()
        else:
            TemporaryFile(dir=above).close()
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


class PositiveNumber(click.ParamType):
    """A number more than 0, and finite unless ``infinite``."""

    name = "number"

    def __init__(self, *, infinite: bool = False) -> None:
        self.infinite = infinite

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = -1.0
        if 0 < number < inf or (self.infinite and number == inf):
            return number
        finite = "a number" if self.infinite else "a finite number"
        self.fail(f"{str(value)[:40]!r} must be {finite} more than 0", param, ctx)


class _Whole(click.ParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if len(text) > DIGITS:
            self.fail(f"{text[:20]}… must be a whole number of at most {DIGITS} digits", param, ctx)
        return super().convert(value, param, ctx)


class Whole(_Whole, type(click.INT)):
    """A whole number."""


class AtLeast(_Whole, click.IntRange):
    """A whole number that is not less than the given one."""
