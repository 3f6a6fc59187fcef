"""One event of a Chrome trace, decoded by msgspec, which passes over what nobody asks for."""

from __future__ import annotations

import json
from typing import Any

import msgspec


class Event(msgspec.Struct, gc=False):
    """What is read of an event. Times are microseconds, counted from ``baseTimeNanoseconds`` of the file's head."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def end(self) -> float:
        return self.ts + self.dur

    def arguments(self) -> dict[str, Any]:
        return json.loads(bytes(self.args))


BROKEN = (msgspec.DecodeError,)  # what decode raises where this is no list of events
decode = msgspec.json.Decoder(list[Event]).decode
