"""A run of real processes to which random things happen: agents and ranks are killed, paused and added.

The seed decides what happens, and in what order. After each run it is checked that training went on or ended with one
sentence, that no sample was lost or seen twice, that the ranks' copies are equal, and that nothing is left.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from course_lib.data.digits import load_digits
from course_lib.elastic.demo import new_state, summed_step
from course_lib.elastic.fleet import Fleet
from course_lib.elastic.journal import Journal
from course_lib.elastic.leftovers import own_files, own_processes, what_is_left
from course_lib.elastic.limits import Limits
from course_lib.elastic.worker import Session
from course_lib.processes.descendants import is_running
from course_lib.runtime.errors import RankError

PLACES, FEWEST = 5, 3  # agents; fewer than FEWEST form no round
PATIENT = 250.0  # seconds: a limit for a machine that is busy; nothing waits so long for its own sake
GONE_WITHIN = 60.0  # seconds in which processes that were killed must be gone, and their ports and files
KINDS = ("kill agent", "kill rank", "pause", "resume", "add")


@dataclass
class Report:
    """What happened in a run. After a good one, ``wrong`` and ``left`` are empty."""

    seed: int
    ended: str = ""  # "done", or the sentence with which training ended
    seconds: float = 0.0
    steps: int = 0
    rounds: int = 0
    events: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # processes, ports and files

    def is_good(self) -> bool:
        return bool(self.ended) and not self.wrong and not self.left

    def count(self, kind: str) -> int:
        """How often one of ``KINDS`` happened."""
        return sum(event.startswith(kind) for event in self.events)


def train_until_told(session: Session, told: str) -> dict[str, Any]:
    """Train without end, until the file ``told`` is there; all ranks look at the same step."""
    # On SIGUSR1, a rank that hangs writes down where. The handler keeps the file open.
    stacks = Path(told).with_name(f"{os.getpid()}.stacks")
    faulthandler.register(signal.SIGUSR1, file=stacks.open("a"))
    images, labels = load_digits()
    state = session.kept.setdefault("state", None) or new_state(len(labels))
    session.kept["state"] = state
    session.restore(state)
    end = torch.zeros(1)
    while not end:
        own = state.sampler.batch(session.rank, session.ranks)
        session.note_batch(state.step + 1, own)
        end = torch.tensor([float(session.rank == 0 and os.path.exists(told))])
        dist.all_reduce(end)
        loss = summed_step(state, images[own], labels[own])
        time.sleep(0.03)
        state.commit(session.round)
        session.border(state.step, loss)
    return state.state_dict()


class Faults:
    """Does one random thing after another to a fleet; at least ``FEWEST`` agents that can train always remain.

    Two things at most happen before training has gone on. So a rank that has the newest state always remains, too.
    """

    def __init__(self, seed: int, fleet: Fleet, report: Report, patience: float) -> None:
        self.fleet, self.report, self.patience = fleet, report, patience
        self.choose = random.Random(seed)
        self.running = set(fleet.agents)
        self.paused: set[int] = set()
        self.restarts = dict.fromkeys(fleet.agents, fleet.restarts)

    def happen(self, changes: int) -> None:
        at_once = False
        for _ in range(changes):
            done = max(e["step"] for e in self.fleet.journal.of("step"))
            kind, whom = self.choose.choice([(kind, sorted(them)) for kind, them in self._may() if them])
            i = self.choose.choice(whom)
            self._do(kind, i)
            at_once = not at_once and self.choose.random() < 0.4
            if at_once:  # the next thing happens while this one is being handled
                time.sleep(2 * self.choose.random())
            else:
                self._wait_for_later_steps(done)

    def resume_all(self) -> None:
        for i in sorted(self.paused):
            self._do("resume", i)

    def leave_too_few(self) -> None:
        """Kill agents until no round can be formed."""
        while len(self.running) >= FEWEST:
            self._do("kill agent", self.choose.choice(sorted(self.running)))

    def _may(self) -> list[tuple[str, set[int]]]:
        """What may happen now, and to whom."""
        spare = self.running if len(self.running) > FEWEST else set()
        free = set(range(PLACES)) - self.running - self.paused
        return [
            ("kill agent", spare | self.paused),
            ("kill rank", spare | {i for i in self.running if self.restarts[i]}),
            ("pause", spare),
            ("resume", self.paused),
            ("add", set(sorted(free)[:1])),  # a fleet takes the first free place
        ]

    def _do(self, kind: str, i: int) -> None:
        fleet = self.fleet
        self.report.events.append(f"{kind} {i}")
        if kind == "kill agent":
            fleet.kill_agent(i)
            self.running -= {i}
            self.paused -= {i}
        elif kind == "kill rank":
            # A rank that has just been started is connected soon.
            fleet.kill(fleet.wait_until(lambda journal: fleet.ranks_of(i), self.patience)[0])
            if not self.restarts[i]:
                self.running -= {i}  # it leaves
            self.restarts[i] = max(0, self.restarts[i] - 1)
        elif kind == "pause":
            fleet.pause_agent(i)
            self.running -= {i}
            self.paused |= {i}
        elif kind == "resume":
            fleet.resume_agent(i)
            self.running |= {i}
            self.paused -= {i}
        else:
            # An agent that was killed, or whose rank was, ends a moment later.
            fleet.wait_until(lambda journal: not fleet.lives(i), self.patience)
            i = fleet.add_agent()
            self.running |= {i}
            self.restarts[i] = fleet.restarts

    def _wait_for_later_steps(self, done: int) -> None:
        """Until enough ranks of one round have done a step that nobody could have begun before the last change."""

        def went_on(journal: Journal) -> bool:
            later = {(e["round"], e["rank"]) for e in journal.of("step") if e["step"] > done + 2}
            return any(count >= FEWEST for count in Counter(round for round, _ in later).values())

        self.fleet.wait_until(went_on, self.patience)


def random_run(seed: int, changes: int = 6, *, patience: float = PATIENT, keep: Path | None = None) -> Report:
    """Train with five agents while ``changes`` random things happen; of five runs, one is left with too few agents.

    Args:
        seed: of what happens. Agents of odd seeds start a rank that died again, once.
        patience: seconds for each wait.
        keep: the folder in which the journal and the stacks of a run that failed are kept.
    """
    report, began, too_few = Report(seed), time.monotonic(), seed % 5 == 4
    processes, files = own_processes(), own_files()
    give_up = 15.0 if too_few else 200.0
    limits = Limits(FEWEST, PLACES, last_call=0.3, beat_timeout=3.0, give_up=give_up)
    results: list[Any] = []
    stacks: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="faults-", dir=get_temp_dir()) as folder:
        told = f"{folder}/told"
        fleet = Fleet(train_until_told, PLACES, args=(told,), limits=limits, restarts=seed % 2, places=PLACES)
        with fleet:
            try:
                fleet.wait_for_step(2, patience)
                faults = Faults(seed, fleet, report, patience)
                faults.happen(changes)
                faults.resume_all()
                faults.leave_too_few() if too_few else Path(told).touch()
                results, report.ended = _end(fleet, patience)
            except Exception:
                report.wrong = [traceback.format_exc()]
                stacks = _stacks(folder)
    journal = fleet.journal
    report.rounds = len(journal.rounds())
    report.steps = max((e["step"] for e in journal.of("step")), default=0)
    report.wrong = report.wrong or what_is_wrong(journal, report.ended, too_few, results)
    until = time.monotonic() + GONE_WITHIN
    while time.monotonic() < until:
        report.left = [
            *what_is_left(journal, fleet.hosts, fleet.folder.name, folder),
            *(f"process {pid}" for pid in own_processes() - processes),
            *(f"file {name}" for name in own_files() - files),
        ]
        if not report.left:
            break
        time.sleep(0.1)
    report.seconds = time.monotonic() - began
    if keep and not report.is_good():
        keep.mkdir(parents=True, exist_ok=True)
        stacks["journal.jsonl"] = "".join(json.dumps(event) + "\n" for event in journal.events)
        for name, text in stacks.items():
            (keep / name).write_text(text)
    return report


def _end(fleet: Fleet, patience: float) -> tuple[list[Any], str]:
    """What the ranks returned, and how training ended."""
    try:
        return fleet.wait(patience), "done"
    except RankError as error:
        return [], str(error)


def what_is_wrong(journal: Journal, ended: str, too_few: bool, results: list[Any]) -> list[str]:
    """Of a run that has ended."""
    if too_few:
        ends = [f"{FEWEST} agents are needed, and {there} had joined" for there in range(FEWEST)]
        return [] if ended.endswith(tuple(ends)) and "\n" not in ended else [f"it ended so: {ended}"]
    if ended != "done":
        return [f"training did not go on: {ended}"]
    wrong = []
    if len(results) < FEWEST:
        wrong.append(f"{len(results)} ranks returned their state")
    first, *others = map(tree_leaves, results)
    for rank, leaves in enumerate(others, 1):
        if len(leaves) != len(first) or not all(map(_same, first, leaves)):
            wrong.append(f"the state of rank {rank} is not that of rank 0")
    history = results[0]["history"]
    sampler, expected = new_state(results[0]["sampler"]["samples"]).sampler, Counter()
    for _ in history:
        expected.update(sampler.next_batch(0, 1).tolist())
    if journal.samples(history) != expected:
        wrong.append("samples were lost or seen twice")
    if len(history) < max(e["step"] for e in journal.of("step")):
        wrong.append("steps were lost")
    return wrong


def _stacks(folder: str) -> dict[str, str]:
    """Where the ranks of a run that hangs are now, by the name of a file."""
    paths = [p for p in Path(folder).glob("*.stacks") if is_running(int(p.stem))]
    for path in paths:
        os.kill(int(path.stem), signal.SIGUSR1)
    time.sleep(1.0)
    return {path.name: path.read_text() for path in paths}


def _same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
