"""How fast the simulator is, beside PyTorch's own lists of a schedule with spacing.

    python benchmarks/schedules.py

Prints the target beside what was measured and exits with 1 if one is missed.
"""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout

from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from simulator.engine import simulate
from simulator.schedules import make_schedule

RANKS, MICROBATCHES = 32, 256


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def torch_spaced() -> None:
    with redirect_stdout(io.StringIO()):  # it prints every step
        get_schedule_ops("ZBVZeroBubble", RANKS, MICROBATCHES, add_spacing=True)


def main() -> int:
    one_f_one_b = make_schedule("1f1b", RANKS, MICROBATCHES)
    spans = len(one_f_one_b) / min(seconds(lambda: simulate(one_f_one_b).spans) for _ in range(7))
    rate = len(one_f_one_b) / min(seconds(lambda: simulate(one_f_one_b)) for _ in range(7))

    # Alternating, so that a busy machine slows both; each of ours makes the schedule anew, as torch does.
    ratios = []
    for _ in range(3):
        ours = seconds(lambda: simulate(make_schedule("zb-v", RANKS, MICROBATCHES)).spans)
        ratios.append(seconds(torch_spaced) / ours)

    imported = "import simulator.schedules, simulator.engine, simulator.plots"
    clock = f"import time; t = time.perf_counter(); {imported}; print(time.perf_counter() - t)"
    imports = min(float(subprocess.check_output([sys.executable, "-c", clock])) for _ in range(3))

    rows = [
        (
            f"1f1b, {RANKS} ranks x {MICROBATCHES} microbatches, actions per second",
            rate,
            300_000,
            rate >= 300_000,
        ),
        ("  and with every span spelled out", spans, None, True),
        ("zb-v at that size, times faster than torch's get_schedule_ops with spacing", *_at_least(ratios, 7)),
        ("import, seconds", imports, 0.3, imports < 0.3),
    ]
    print(f"{'':76}{'measured':>12}{'target':>12}")
    for name, measured, target, met in rows:
        print(f"{name:76}{measured:12,.4g}{'' if target is None else target:>12}{'' if met else '  MISSED'}")
    return 0 if all(met for *_, met in rows) else 1


def _at_least(ratios: list[float], target: float) -> tuple[float, float, bool]:
    ratio = statistics.median(ratios)
    return ratio, target, ratio >= target


if __name__ == "__main__":
    sys.exit(main())
