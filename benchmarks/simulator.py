"""How fast the simulator is: its engine, its queries, and its lists beside PyTorch's own with spacing.

python benchmarks/simulator.py

Prints each target beside what was measured, and ends with exit code 1 where one is missed. Takes about half a minute
on two idle cores.
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout

import click
from paired import report
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import RECOMPUTE, Plan
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule
from simulator.predict.memory import plan_memory
from simulator.predict.step import step_cost

RANKS, MICROBATCHES = 32, 256


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def torch_spaced() -> None:
    with redirect_stdout(io.StringIO()):  # it prints every step
        get_schedule_ops("ZBVZeroBubble", RANKS, MICROBATCHES, add_spacing=True)


def different_plans() -> list[Plan]:
    """Plans of a 175B model on 1,024 devices that differ in every way that a search would try."""
    return [
        Plan(
            dp=(dp := 1024 // tp // pp),
            tp=tp,
            pp=pp,
            chunks=chunks,
            micro_batch=b,
            microbatches=max(1, 2048 // dp // b),
            zero=zero,
            recompute=recompute,
            sequence_parallel=tp > 1,
        )
        for tp in (1, 2, 4, 8)
        for pp, chunks in ((1, 1), (2, 1), (4, 2), (8, 1), (8, 3), (16, 2))
        for zero in (0, 1, 2, 3)
        for recompute in RECOMPUTE
        for b in (1, 2, 4)
    ]


def queries() -> tuple[float, float]:
    """(seconds of step_cost for a 530B plan, different plans a second: their memory and their time).

    Of this process's own time, so that a neighbour's work does not count.
    """
    plan = Plan(8, 8, 35, microbatches=280, chunks=3, sequence_parallel=True, recompute="selective")
    model, gpu, plans = MODELS["gpt3-175b"], GPUS["a100-80gb"], different_plans()
    one = min(seconds(lambda: step_cost(MODELS["gpt-530b"], plan, gpu), time.process_time) for _ in range(50))

    def all_plans() -> None:
        for plan in plans:
            plan_memory(model, plan, gpu)
            step_cost(model, plan, gpu)

    return one, len(plans) / min(seconds(all_plans, time.process_time) for _ in range(3))


@click.command(help=__doc__)
def main() -> None:
    schedule = make_schedule("1f1b", RANKS, MICROBATCHES)
    rate = len(schedule) / min(seconds(lambda: simulate(schedule)) for _ in range(7))
    print(f"1f1b, {RANKS} ranks x {MICROBATCHES} microbatches: {rate:,.0f} actions a second; target 300,000")

    clock = "import time; t = time.time(); import simulator.pipeline.engine, simulator.plots; print(time.time() - t)"
    imports = min(float(subprocess.check_output([sys.executable, "-c", clock])) for _ in range(3))
    print(f"import of the simulator: {imports:.3f} s; target 0.3 s")

    torchs, ours = [], []  # alternating, and each of ours makes the schedule anew, as torch does
    for _ in range(3):
        ours.append(seconds(lambda: simulate(make_schedule("zb-v", RANKS, MICROBATCHES)).spans))
        torchs.append(seconds(torch_spaced))
    report("zb-v, torch's get_schedule_ops with spacing / ours", torchs, ours, at_least=7)
    one, plans = queries()
    print(f"step of a 530B plan: {1e3 * one:.2f} ms; target 2 ms")
    print(f"different plans of a 175B model, memory and step: {plans:,.0f} a second; target 1,000")
    if rate < 300_000 or imports > 0.3 or one > 2e-3 or plans < 1000:
        sys.exit("a target above was MISSED")


if __name__ == "__main__":
    main()
