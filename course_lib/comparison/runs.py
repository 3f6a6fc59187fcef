"""Finished runs as lines of JSON: what a comparison keeps, so that it can be stopped and go on."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, Generic, TypeVar

Run = dict[str, Any]
S = TypeVar("S")  # a frozen dataclass: all that decides a run's result


class Runs(Generic[S]):
    """The file of finished runs. A line is written when its run has ended, so an interrupted run leaves nothing.

    Args:
        path: of the file; its folder is made.
        setting: the dataclass by which a run is known; a line has at least its fields.
        free: the fields in which runs of one comparison differ.

    Raises:
        ValueError: the file holds a line that is no run.
    """

    def __init__(self, path: Path, setting: type[S], free: Collection[str]) -> None:
        self.path, self.setting, self.free = path, setting, free
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a machine that stopped while writing: the line is computed again
            path.write_text(whole, encoding="utf-8")
        self.rows: dict[S, Run] = {}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                row = json.loads(line)
                self.rows[self.setting_of(row)] = row
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"line {number} of {path} is no finished run; remove it, or name another --out."
                ) from error

    def like(self, setting: S) -> list[Run]:
        """The runs that differ from ``setting`` in the free fields alone."""
        shared = [f.name for f in fields(self.setting) if f.name not in self.free]
        return [row for row in self.rows.values() if all(row[k] == getattr(setting, k) for k in shared)]

    def add(self, row: Run) -> Run:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[self.setting_of(row)] = row
        return row

    def setting_of(self, row: Run) -> S:
        return self.setting(**{field.name: row[field.name] for field in fields(self.setting)})
