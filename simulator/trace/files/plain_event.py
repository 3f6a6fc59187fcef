"""The same as ``event.py`` where there is no msgspec, in a browser: slower, and a piece is kept as a whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Event:
    """As ``simulator.trace.files.event.Event``."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> float:
        return self.ts + self.dur

    def arguments(self) -> dict[str, Any]:
        return self.args


BROKEN = (AttributeError, TypeError)


def decode(text: str | bytes) -> list[Event]:
    return [Event(**{key: one[key] for key in one.keys() & Event.__slots__}) for one in json.loads(text)]
