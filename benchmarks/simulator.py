"""How fast the simulator is, beside PyTorch's own lists of a schedule with spacing.

    python benchmarks/simulator.py

Prints the target beside what was measured and exits with 1 if one is missed.
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout

from paired import report
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import make_schedule

RANKS, MICROBATCHES = 32, 256


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def torch_spaced() -> None:
    with redirect_stdout(io.StringIO()):  # it prints every step
        get_schedule_ops("ZBVZeroBubble", RANKS, MICROBATCHES, add_spacing=True)


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
    if rate < 300_000 or imports > 0.3:
        sys.exit("a target above was MISSED")


if __name__ == "__main__":
    main()
