"""Elastic training while agents and ranks are killed, paused and added at random: real processes, a seed for each run.

python benchmarks/elastic_faults.py [--runs 3] [--first 0] [--folder runs/elastic_faults]

Each run trains with five agents of one rank each, of which three are needed. Six random things happen to them. Then
training is told to end, or, in every fifth run, agents are killed until no round can be formed. A run is good if
training went on after each event and ended as it should: with equal copies on all ranks and each sample seen as often
as it should be, or with one sentence; and if no process, port or file was left.

A line for each run is kept in the folder. A seed that has a good line there is not run again, so a hundred runs can be
stopped and taken up again. Of a run that failed the journal and the stacks of its ranks are kept, too.

Prints a line for each run when it has ended, then how all of them ended and what happened in them, and ends with exit
code 1 if a run was not good. Takes about 20 s a run on two cores.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click
from paired import count

from course_lib.elastic.random_faults import KINDS, Report, random_run


def kept(file: Path) -> dict[int, Report]:
    """The last line of each seed."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {report.seed: report for report in (Report(**json.loads(line)) for line in lines)}


def one_line(report: Report) -> str:
    if not report.is_good():
        return "; ".join(["FAILED", *(text.splitlines()[-1] for text in report.wrong), *report.left])
    return f"{report.ended}; {report.seconds:.0f} s, {report.steps} steps; {', '.join(report.events)}"


def summary(reports: list[Report]) -> str:
    seconds = [report.seconds for report in reports]
    ends = Counter(report.ended if report.is_good() else "not good" for report in reports)
    happened = ", ".join(f"{kind} {sum(r.count(kind) for r in reports)}" for kind in KINDS)
    return "\n".join(
        [
            f"{len(reports)} runs:",
            *(f"  {number:3} ended: {end}" for end, number in ends.most_common()),
            f"what happened: {happened}; rounds that were formed again: {sum(r.rounds - 1 for r in reports)}",
            f"seconds: median {statistics.median(seconds):.0f}, at most {max(seconds):.0f}",
            f"left over: {sum(len(r.left) for r in reports)} processes, ports and files",
        ]
    )


@click.command(help=__doc__)
@count("--runs", 3, "How many seeds.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default="runs/elastic_faults",
    show_default=True,
    help="Where lines are kept, and what is there of runs that failed.",
)
def main(runs: int, first: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file, seeds = folder / "runs.jsonl", range(first, first + runs)
    found = kept(file)
    for seed in seeds:
        before = "kept: "
        if seed not in found or not found[seed].is_good():
            before = ""
            found[seed] = random_run(seed, keep=folder / f"seed-{seed}")
            with file.open("a") as lines:
                lines.write(json.dumps(asdict(found[seed])) + "\n")
        print(f"seed {seed}: {before}{one_line(found[seed])}", flush=True)
    reports = [found[seed] for seed in seeds]
    print(summary(reports))
    sys.exit(not all(report.is_good() for report in reports))


if __name__ == "__main__":
    main()
