"""Elastic training beside torchrun: the same loop on four agents of one rank each, of which one is killed.

python benchmarks/elastic.py [--rounds 3]

Measured in seconds: from the start of the agents to the first step of four ranks, and from the kill (SIGKILL to an
agent and its rank) to the first step of three. Then the agent that hosts the store is killed, too. torchrun's settings
are the fastest that we found to work; with a shorter last call it can form two worlds at once. The two take turns.

Prints each measurement when it is there, then the medians of both sides, and ends with exit code 1 where ours once
took 3 s or more after a kill. Takes about a minute a round, and three where torchrun waits in vain.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import click
import torch
import torch.distributed as dist
from paired import rounds

from course_lib.elastic.fleet import Fleet
from course_lib.elastic.journal import Journal, JournalWriter
from course_lib.elastic.limits import Limits
from course_lib.elastic.torchrun_fleet import TorchrunFleet
from course_lib.runtime import RankError

SETTINGS = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
LIMITS = Limits(min_agents=2, max_agents=4, last_call=0.5)
AGENTS, WAIT = 4, 120.0
MEASURED = "first step of four ranks", "of three, after a kill", "of two, after the loss of the store's host"


def step() -> None:
    dist.all_reduce(torch.ones(100_000))
    time.sleep(0.01)


def our_training(session: Any) -> None:
    done = 0
    while True:
        step()
        done += 1
        session.border(done)


def torchruns_training(folder: str) -> None:
    """What a worker of torchrun runs: it is started anew in each round."""
    dist.init_process_group("gloo")
    writer = JournalWriter(folder, "worker")
    while True:
        step()
        writer.write("step", rank=dist.get_rank(), ranks=dist.get_world_size())


def seconds_until(fleet: Any, ranks: int, since: float) -> float | None:
    """To the first step of so many ranks; None: it did not come."""

    def first(journal: Journal) -> float | None:
        return next(
            (e["time"] for e in journal.of("step") if e["time"] > since and _ranks(e, journal) == ranks), None
        )

    def _ranks(event: dict[str, Any], journal: Journal) -> int:
        return event.get("ranks") or journal.of("connected", round=event["round"])[0]["ranks"]

    try:
        return fleet.wait_until(first, WAIT) - since
    except (TimeoutError, RankError):
        return None


def measure(make: Callable[[], Any]) -> tuple[float | None, float | None, float | None]:
    """Seconds to the first step of four ranks, of three after a kill, of two after the loss of the store's host."""
    began = time.monotonic()
    with make() as fleet:
        first = seconds_until(fleet, 4, began)
        if first is None:  # what comes later would mean something else
            return None, None, None
        again = seconds_until(fleet, 3, fleet.kill_agent(3))
        lost = None if again is None else seconds_until(fleet, 2, fleet.kill_agent(0))
    return first, again, lost


def shown(found: list[float | None]) -> str:
    came = [seconds for seconds in found if seconds is not None]
    if not came:
        return f"not within {WAIT:g} s"
    text = f"{statistics.median(came):.2f} s"
    return text if len(came) == len(found) else f"{text} ({len(found) - len(came)} of {len(found)} did not)"


@click.command(help=__doc__)
@rounds(3)
@click.option("--worker", hidden=True)
def main(rounds: int, worker: str | None) -> None:
    if worker:
        torchruns_training(worker)
    program = (__file__, "--worker")
    sides = {
        "ours": lambda: Fleet(our_training, AGENTS, limits=LIMITS),
        "torchrun": lambda: TorchrunFleet(program, AGENTS, least=2, settings=SETTINGS, restarts=9),
    }
    found: dict[str, list] = {name: [] for name in sides}
    for turn in range(rounds):
        for name, make in sides.items():
            times = measure(make)
            found[name].append(times)
            tried = [*times, None].index(None) + 1  # after what did not come, nothing was tried
            said = "; ".join(
                f"{what}: {shown([time])}" for what, time in list(zip(MEASURED, times, strict=True))[:tried]
            )
            print(f"round {turn + 1} of {rounds}, {name}: {said}", flush=True)
    print(f"\nmedians{'':37}{'ours':>26}{'torchrun':>26}")
    for i, what in enumerate(MEASURED):
        ours, theirs = (shown([times[i] for times in found[name]]) for name in sides)
        print(f"{what:44}{ours:>26}{theirs:>26}")
    again = [times[1] for times in found["ours"]]
    met = all(seconds is not None and seconds < 3 for seconds in again)
    print(f"re-formed after a kill in under 3 s, each time: {'met' if met else 'MISSED'}")
    sys.exit(not met)


if __name__ == "__main__":
    main()
