"""The traffic ledger: which collectives ran, how often, and how many bytes each rank sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from simulator.inputs.checks import at_least, not_negative


@dataclass(frozen=True, slots=True, order=True)
class TrafficRow:
    """All calls of one collective in groups of one size, seen from one rank.

    Args:
        collective: ``"all-reduce"``, ``"all-gather"``, ``"reduce-scatter"``, ``"broadcast"``, ``"reduce"``,
            ``"scatter"``, ``"gather"``, ``"all-to-all"``, ``"send"`` or ``"barrier"``.
        group_size: how many ranks took part (2 for a send).
        calls: how often it was called.
        payload: bytes of the tensors concerned, summed over the calls: the whole tensor, that is the
            *output* of an all-gather and the *input* of a reduce-scatter.
        sent: bytes this rank put on the wire.
    """

    collective: str
    group_size: int
    calls: int
    payload: float
    sent: float

    def __post_init__(self) -> None:
        at_least(1, group_size=self.group_size)
        at_least(0, calls=self.calls)
        not_negative(payload=self.payload, sent=self.sent)


@dataclass(frozen=True)
class Traffic:
    """What one rank communicated: rows with equal collective and group size are merged."""

    rows: tuple[TrafficRow, ...]

    def __init__(self, rows: Iterable[TrafficRow] = ()) -> None:
        merged: dict[tuple[str, int], list[Any]] = defaultdict(lambda: [0, 0, 0])
        for row in rows:
            total = merged[row.collective, row.group_size]
            total[0] += row.calls
            total[1] += row.payload
            total[2] += row.sent
        rows = tuple(TrafficRow(*key, *total) for key, total in sorted(merged.items()))
        object.__setattr__(self, "rows", rows)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic((*self.rows, *other.rows))

    def __mul__(self, times: int) -> Traffic:
        """So often the same."""
        at_least(0, times=times)
        return Traffic(
            TrafficRow(
                row.collective, row.group_size, times * row.calls, times * row.payload, times * row.sent
            )
            for row in self.rows
        )

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows)

    @property
    def sent(self) -> float:
        """Bytes this rank put on the wire, all collectives together."""
        return sum(row.sent for row in self.rows)

    def of(self, collective: str) -> Traffic:
        """The rows of one collective."""
        return Traffic(row for row in self.rows if row.collective == collective)
