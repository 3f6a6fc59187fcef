"""A Chrome trace, event by event, in bounded memory: PyTorch's profiler writes gigabytes of them.

The file is read in pieces that end between two events. Where an event ends is seen from how the next one begins: a
program writes the same key first in each.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING or find_spec("msgspec"):
    from simulator.trace.files.event import BROKEN, Event, decode
else:  # in a browser
    from simulator.trace.files.plain_event import BROKEN, Event, decode

PIECE = 8_000_000  # bytes that are read at once
LONGEST = 64_000_000  # bytes before the first event, or of one piece, beyond which this is no trace
OPENED = re.compile(rb'"traceEvents"\s*:\s*\[|\A\s*\[')


def read_events(path: Path) -> Iterator[dict[str, Any] | Event]:
    """First what stands before the events, as a dict, and then every event.

    Raises:
        ValueError: this is no Chrome trace, or it breaks off.
    """
    with _open(path) as file:
        try:
            yield from _events(file, path)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} breaks off, or is no gzip file: {error}") from None
        except (*BROKEN, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is no whole trace: {error}") from None


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]


def _events(file: BinaryIO, path: Path) -> Iterator[dict[str, Any] | Event]:
    text = b""
    while (opened := OPENED.search(text)) is None:
        piece = file.read(PIECE)
        text += piece
        if not piece or len(text) > LONGEST:
            raise ValueError(f"{path} is no Chrome trace: it has no list of traceEvents")
    head = text[: opened.start()].rstrip().rstrip(b",")
    yield json.loads(head + b"}") if head.lstrip(b"{ \n") else {}
    text = text[opened.end() :]
    border: re.Pattern[bytes] | None = None
    while piece := file.read(PIECE):
        text += piece
        if border is None and (first := re.match(rb'\s*\{\s*("[^"]*")', text)):
            border = re.compile(rb"\}\s*,\s*(?=\{\s*" + re.escape(first[1]) + rb"\s*:)")
        cut = _last(border, text) if border else None
        if cut is not None:
            yield from decode(b"[" + text[: cut[0] + 1] + b"]")
            text = text[cut[1] :]
        elif len(text) > LONGEST:
            raise ValueError(f"{path} is no Chrome trace: no event ends in {len(text)} bytes")
    rest = "[" + text.decode()
    _, end = json.JSONDecoder().raw_decode(rest)  # the events end before the file does
    yield from decode(rest[:end])


def _last(border: re.Pattern[bytes], text: bytes) -> tuple[int, int] | None:
    """Where the last event of ``text`` that is surely whole ends, and where the next begins."""
    window = 1 << 16
    while True:
        found = list(border.finditer(text, max(0, len(text) - window)))
        if found or window > len(text):
            return found[-1].span() if found else None
        window *= 8
