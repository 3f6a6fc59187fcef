"""Answers of chapter 04 on real ranks: what each rank returned, and every message it sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.grading.ranks import launch
from course_lib.grading.report import Report
from course_lib.observe.ledgers.messages import record_messages
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import RankError, collectives
from course_lib.runtime.collectives import receive, send
from simulator.predict.message_rounds import Event

# Ranks that wait for each other are found out long before the limit, in seconds.
ON_CPU: dict[str, Any] = {"timeout": 60.0, "backend": "gloo"}
FINISHED = (
    "broadcast",
    "scatter",
    "gather",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
)


@dataclass(frozen=True)
class Outcome:
    """What an answer did: each rank's result, and its sends and receives in their order."""

    results: list[Any]
    logs: list[list[Event]]

    @property
    def sent(self) -> list[tuple[tuple[int, ...], ...]]:
        """What each rank sent, message by message: one way of telling how a result came about."""
        return [tuple(event.values for event in log if event.kind == "send") for log in self.logs]

    @property
    def sends(self) -> list[tuple[int, Event]]:
        """Every message with its sender."""
        return [(r, event) for r, log in enumerate(self.logs) for event in log if event.kind == "send"]

    @property
    def messages(self) -> int:
        """Messages sent by the rank that sent most."""
        return max(len(sent) for sent in self.sent)

    @property
    def bytes(self) -> list[int]:
        """Bytes that each rank sent."""
        return [sum(event.size for event in log if event.kind == "send") for log in self.logs]


def run(report: Report, answer: Callable[..., Any], inputs: Sequence[Tensor], *more: Any) -> Outcome:
    """Call the answer on as many ranks as there are inputs; it may use messages only, and leaves its input alone."""
    outcomes = launch(_on_rank, len(inputs), args=(answer, list(inputs), more), **ON_CPU)
    results, kept, logs, others = map(list, zip(*outcomes, strict=True))
    if any(others):
        task = "Every message is sent by `send` or `exchange`"
        report.fail(f"the answer calls {', '.join(max(others))}", task=task)
    if not all(kept):
        report.fail(
            f"on rank {kept.index(False)} `t` has other values than before", task="`t` keeps its values"
        )
    wrong = [r for r, result in enumerate(results) if not isinstance(result, Tensor)]
    if wrong:
        report.fail(f"rank {wrong[0]} returned {results[wrong[0]]!r}, not a tensor")
    wrong = [r for r, result in enumerate(results) if result.dtype != inputs[r].dtype]
    if wrong:
        types = f"{results[wrong[0]].dtype}, and `t` is {inputs[wrong[0]].dtype}"
        report.fail(f"rank {wrong[0]} returned {types}".replace("torch.", ""), task="of the dtype of `t`")
    return Outcome(results, logs)


def bytes_at_most(report: Report, outcome: Outcome, limits: list[int], task: str, way: str | None) -> None:
    """Each rank's bytes against its own limit, stated for the rank that exceeds it, or else for rank 0.

    Args:
        way: the sentence of the mistake that the messages show, if they show one.
    """
    sent = outcome.bytes
    worst = max(range(len(sent)), key=lambda r: (sent[r] > limits[r], -r))
    mistakes = {way: sent[worst]} if way else {}
    report.at_most(f"bytes sent by rank {worst}", sent[worst], limits[worst], mistakes=mistakes, task=task)


_WAITS = re.compile(r"rank (\d+)\s+waits in (send|receive|exchange)\(.*?(?:to|from) rank (\d+)")


def waiting(error: RankError) -> dict[int, tuple[str, int]]:
    """Of ranks that hang: what each waits in (``"send"``, ``"receive"`` or ``"exchange"``), and for whom."""
    return {int(rank): (kind, int(peer)) for rank, kind, peer in _WAITS.findall(str(error))}


def _on_rank(answer: Callable[..., Any], inputs: Sequence[Tensor], more: tuple) -> tuple[Any, ...]:
    mine = inputs[dist.get_rank()]
    before, finished = mine.clone(), set()
    noting = {name: _noted(name, finished) for name in FINISHED}
    with mock.patch.multiple(collectives, **noting), record_traffic() as log, record_messages() as events:
        result = answer(mine, *more)
    others = {
        f"{row.collective} of torch.distributed" for row in log.traffic.rows if row.collective != "send"
    }
    result = result.detach().clone() if isinstance(result, Tensor) else result
    return result, torch.equal(mine, before), events, sorted(others | finished)


def _noted(name: str, called: set[str]) -> Callable[..., Any]:
    """The course's own collective, which notes that it was called."""
    original = getattr(collectives, name)

    def noting(*args: Any, **named: Any) -> Any:
        called.add(f"the course's own {name}")
        return original(*args, **named)

    return noting


def play(programs: list[list[tuple[str, int]]], values: list[float]) -> float:
    """Carry out a rank's steps with blocking messages; what it received."""
    me = dist.get_rank()
    received = torch.empty(1)
    for kind, peer in programs[me]:
        if kind == "send":
            send(torch.tensor([values[me]]), peer)
        else:
            received = receive(received, peer)
    return received.item()


def play_on_ranks(programs: list[list[tuple[str, int]]], values: list[float]) -> list[float]:
    """``play`` on as many ranks as there are programs."""
    return launch(play, len(programs), args=(programs, values), **ON_CPU)
