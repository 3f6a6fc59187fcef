"""How the benchmarks judge: the median of the ratios of measurements that were taken next to each other.

These machines are noisy, and noise comes in waves: two sides measured in the same second share their wave, so
their ratio is steadier than either time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

# A script's own folder comes first on the path, and there simulator.py would hide the package of its name.
sys.path.append(sys.path.pop(0))
sys.path.insert(0, str(Path(__file__).parents[1]))


def report(
    what: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> float:
    """Print both medians and the median ratio beside its target; leave with exit code 1 on a miss."""
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    line = (
        f"{what}: {ratio:.3f} (median of {len(ours)} pairs; "
        f"{1e3 * statistics.median(ours):.1f} ms and {1e3 * statistics.median(theirs):.1f} ms)"
    )
    met = (at_most is None or ratio <= at_most) and (at_least is None or ratio >= at_least)
    if at_most is not None or at_least is not None:
        bound = f"at most {at_most:g}" if at_most is not None else f"at least {at_least:g}"
        line += f"; target {bound}: {'met' if met else 'MISSED'}"
    print(line, flush=True)
    if not met:
        sys.exit(1)
    return ratio
