"""PyTorch's Flight Recorder: the last collectives that a rank was asked for, as a pickle or as JSON.

A program that hangs leaves one dump a rank (``TORCH_NCCL_DEBUG_INFO_TEMP_FILE``, a pickle). A pickle may run any code,
so only its plain values are read here: dicts, lists, numbers and words.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from simulator.trace.files.rank import Group, Issued, kind_of


class _PlainValues(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it would import {module}.{name}")


@dataclass
class Recorded:
    """One rank's dump.

    Args:
        entries: in the order in which the program asked for them, as PyTorch writes them.
        groups: those of which the dump knows the ranks, by the names that PyTorch gives them.
    """

    rank: int
    entries: list[dict[str, Any]]
    groups: dict[str, Group]

    def issued(self) -> list[Issued]:
        return [
            Issued(kind_of(e["profiling_name"]), e["time_created_ns"] * 1e-9, e["process_group"][0])
            for e in self.entries
        ]


def is_dump(path: Path) -> bool:
    """Is this file a Flight Recorder's, and no trace? A pickle is, and JSON with entries or the status of groups."""
    with path.open("rb") as file:
        start = file.read(1 << 16)
    known = start[:1] == b"{" and (b'"entries"' in start or b'"pg_status"' in start)
    return start[:1] == b"\x80" or (known and b'"traceEvents"' not in start)


def read_dump(path: Path, number: int) -> Recorded:
    """The dump of rank ``number``, unless the name of the file ends with another number.

    Raises:
        ValueError: it is no dump, or no whole one.
    """
    data = path.read_bytes()
    try:
        read = _PlainValues(io.BytesIO(data)).load if data[:1] == b"\x80" else lambda: json.loads(data)
        dump = read()
        entries = sorted(dump.get("entries", ()), key=lambda entry: entry["record_id"])
        groups = {
            name: Group(about["desc"], tuple(map(int, re.findall(r"\d+", about["ranks"]))))
            for name, about in dump.get("pg_config", {}).items()
        }
        recorded = Recorded(rank_in(path.name, number), entries, groups)
        recorded.issued()  # every entry has what is asked of it
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
    ) as error:
        raise ValueError(f"{path} is no whole dump of the Flight Recorder: {error}") from None
    return recorded


def rank_in(name: str, otherwise: int) -> int:
    """``rank3.json.gz``, ``nccl_trace_rank_3`` -> 3."""
    found = re.findall(r"\d+", name.split(".", 1)[0])
    return int(found[-1]) if found else otherwise


def stragglers(dumps: Sequence[Recorded]) -> list[str]:
    """For each group the ranks that have not been asked for what others of it wait in, in sentences."""
    last: dict[tuple[str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
    for dump in dumps:
        for entry in dump.entries:
            if not entry.get("is_p2p"):
                last[tuple(entry["process_group"])][dump.rank] = entry
    found = []
    for (name, description), entries in last.items():
        number = {rank: entry["collective_seq_id"] for rank, entry in entries.items()}
        ranks = next((d.groups[name].ranks for d in dumps if name in d.groups and d.groups[name].ranks), ())
        absent = sorted((set(ranks) & {dump.rank for dump in dumps}) - set(number))
        most = max(number.values())
        behind = [rank for rank in sorted(number) if number[rank] < most]
        if not behind and not absent:
            continue
        there = next(entry for rank, entry in entries.items() if number[rank] == most)
        who = ", ".join(f"rank {r} (at {number.get(r, 0)})" for r in sorted({*behind, *absent}))
        waiting = ", ".join(str(rank) for rank in sorted(number) if number[rank] == most)
        found.append(
            f"{description or name}: {who} never came to call {most}, the {kind_of(there['profiling_name'])} that "
            f"rank {waiting} asked for"
        )
    return found
