"""What happened when: each process writes its own file, line by line, so that what a killed process wrote stays."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulator.ledgers.timeline import Span, Timeline
from simulator.predict.recovery import LANE, PHASES


class JournalWriter:
    """Appends events to a file of this process; ``folder`` None: writes nothing."""

    def __init__(self, folder: str | None, who: str) -> None:
        self.who, self.file = who, None
        if folder is not None:
            self.file = open(Path(folder) / f"{os.getpid()}.jsonl", "a", buffering=1)  # noqa: SIM115

    def write(self, kind: str, **content: Any) -> None:
        if self.file is not None:
            event = {"time": time.monotonic(), "kind": kind, "who": self.who, "pid": os.getpid(), **content}
            self.file.write(json.dumps(event) + "\n")


class Journal:
    """The events of all processes of a run, in the order of their times (``time.monotonic`` of one machine)."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self.events = sorted(events, key=lambda event: event["time"])

    @classmethod
    def read(cls, folder: str | Path) -> Journal:
        events = []
        for path in Path(folder).glob("*.jsonl"):
            lines = path.read_text().split("\n")
            events += [json.loads(line) for line in lines[:-1]]  # a killed process may leave half a line
        return cls(events)

    def of(self, kind: str, **content: Any) -> list[dict[str, Any]]:
        """The events of one kind, with these contents."""
        return [e for e in self.events if e["kind"] == kind and content.items() <= e.items()]

    def losses(self) -> dict[int, float]:
        """Step -> loss of the global batch; of a step that was repeated, the last."""
        return {e["step"]: e["loss"] for e in self.of("step") if e["loss"] is not None}

    def rounds(self) -> list[tuple[float, int, int]]:
        """When each round's ranks were connected, seconds; the number of the round; how many ranks."""
        found: dict[int, tuple[float, int, int]] = {}
        for e in self.of("connected"):
            found[e["round"]] = (e["time"], e["round"], e["ranks"])
        return list(found.values())

    def samples(self, history: Sequence[int]) -> Counter[int]:
        """How often each sample was trained on, by what the ranks wrote down.

        Args:
            history: for each step that counts, the round in which it was done (``TrainingState.history``). A step
                that was begun in an earlier round and had to be repeated does not count.
        """
        counted: Counter[int] = Counter()
        for e in self.of("batch"):
            if e["step"] <= len(history) and history[e["step"] - 1] == e["round"]:
                counted.update(e["samples"])
        return counted

    def recovery(self, lost_at: float) -> Timeline:
        """How the survivors of a loss went on, 0 seconds at the loss; a rank is numbered as in the new round.

        ``detect``: until the rank's collective fails. ``re-form``: until the ranks of the next round are connected.
        ``restore``: until all have the newest state. ``catch up``: until the step is done that was under way.
        """
        spans = []
        for pid in dict.fromkeys(e["pid"] for e in self.of("lost") if e["time"] >= lost_at):
            own = [e for e in self.events if e["pid"] == pid]
            if not any(e["kind"] == "connected" and e["time"] < lost_at for e in own):
                continue  # a newcomer, which lost a peer later on
            marks = list(_milestones(own, lost_at))
            rank = next((e["rank"] for e in own if e["kind"] == "connected" and e["time"] > lost_at), None)
            if rank is None or len(marks) < len(PHASES):
                continue
            for name, start, end in zip(PHASES, [lost_at, *marks], marks, strict=False):
                spans.append(Span(rank, LANE, name, start - lost_at, end - lost_at))
        return Timeline(spans)


def _milestones(own: Sequence[dict[str, Any]], lost_at: float) -> Iterator[float]:
    """The ends of the four phases, from the events of one process."""
    done = max((e["step"] for e in own if e["kind"] == "step" and e["time"] < lost_at), default=0)
    events = iter([e for e in own if e["time"] >= lost_at])
    for wanted in ("lost", "connected", "restored", "step"):
        for event in events:
            if event["kind"] == wanted and (wanted != "step" or event["step"] > done):
                yield event["time"]
                break


@contextmanager
def timed(writer: JournalWriter, name: str) -> Iterator[None]:
    """Write how long the ``with`` took."""
    start = time.monotonic()
    yield
    writer.write("span", name=name, start=start, end=time.monotonic())
