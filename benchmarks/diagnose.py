"""Seeded faults and right steps of many styles: how many does ``course diagnose`` name, and whom does it accuse?

python benchmarks/diagnose.py [--only megatron]

The table is tests/shared/seeded_steps/table.py: every fault has the public thread that tells of it. A fault is named
where the first cause, and the only one, is the one expected: kind, verdict and place. Some verdicts give the place and
not the mechanism ("the fault is between these two"); they are counted apart. Beside it stands what a comparison of
the first step's losses would see, by more than 1e-6.

Then a right step of 8 layers is judged: FSDP2, and Megatron's tensor parallelism.

Prints a line for each row and ends with exit code 1 where fewer than 90 % of the faults are named, a right step is
accused, or 8 layers take more than 20 s. Takes about three minutes on two idle cores.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import click
import paired  # noqa: F401  (the project's packages before this folder's files)

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

from seeded_steps import data_parallel, tensor_parallel
from seeded_steps.table import FAULTS, RIGHT, Fault, said, seeded

from course_lib.diagnose.recording.record import OUTPUT, Item
from course_lib.diagnose.run import Diagnosis, diagnose, judged, on_rank
from course_lib.runtime import RankError, launch

PLACE_ONLY = {"unlike", "inside", "between", "given"}
SECONDS, SHARE = 20.0, 0.9


def loss(items: list[Item]) -> float:
    """The mean square of the last output of the first step, in the place of a loss."""
    values = [i.value for i in items if i.kind == OUTPUT and i.step == 0]
    return float(values[-1].square().mean()) if values else 0.0


def judge(row: Fault) -> tuple[Diagnosis, bool]:
    """What is said of a fault, and whether the mean of the ranks' losses tells it from one device."""
    step = seeded(row.step, row.fault)
    run = partial(launch, on_rank, args=(step,), quiet=True, backend="gloo")
    one = run(1)[0]
    try:
        several = run(row.ranks)
    except RankError as error:
        return Diagnosis((), (str(error),), {}, {}, failed=True), True
    losses = [loss(items) for items in several]
    return judged(one, several, {}), abs(sum(losses) / len(losses) / loss(one) - 1) > 1e-6


def judge_faults(only: str) -> bool:
    rows = [f for f in FAULTS if only in f.name]
    named, mechanism, seen = 0, 0, 0
    for row in rows:
        result, by_loss = judge(row)
        wrong = said(row, result)
        seen += by_loss
        named += not wrong
        mechanism += not wrong and (row.expected[1] not in PLACE_ONLY or row.expected[0] == "weight")
        sentence = (result.sentences or ("",))[0].splitlines()[:1]
        print(
            f"{row.name:34} {wrong or sentence}  [loss: {'differs' if by_loss else 'the same'}]", flush=True
        )
    print(f"faults named: {named} of {len(rows)} ({mechanism} with their mechanism); target {SHARE:.0%}")
    print(f"the first step's loss tells {seen} of them from one device, and not where they are")
    return named >= SHARE * len(rows)


def judge_right(only: str) -> bool:
    rows = [r for r in RIGHT if only in r.step.__name__]
    accused = 0
    for row in rows:
        result = diagnose(row.step, row.ranks)
        accused += bool(result.sentences)
        print(f"{row.name:42} {(result.sentences or (result.summary(),))[0]}", flush=True)
    print(f"right steps accused: {accused} of {len(rows)}; target 0")
    return not accused


def judge_deep() -> bool:
    met = True
    for step in (data_parallel.fsdp, tensor_parallel.megatron):
        start, own = time.perf_counter(), time.process_time()
        result = diagnose(partial(step, layers=8), 4)
        took = time.perf_counter() - start
        met &= took <= SECONDS and not result.sentences
        print(
            f"8 layers, {step.__name__}, 4 ranks: {took:.1f} s, of which {time.process_time() - own:.1f} s of this "
            f"process for comparing; target {SECONDS:g} s; {'accused' if result.sentences else 'right'}"
        )
    return met


@click.command(help=__doc__)
@click.option("--only", default="", help="Rows whose step's name has this in it.")
def main(only: str) -> None:
    results = [judge_right(only), judge_faults(only), judge_deep()]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
