"""08.3: where to cut a chain of unequal layers."""

import math
import random
import time

from course_checks.recomputation import TOO_SLOW, in_time

from course_lib.grading.judge import Fact, record
from simulator.predict.recomputation import Segment, peak_bytes

PATIENCE = 10  # seconds for one chain; a good answer takes milliseconds
FACTS = {
    "starts": Fact("the layers", "Return the numbers of the layers at which segments begin, rising, the…"),
    "late": Fact("seconds until the cuts are found", "For 40 layers there are too many cuts…", most=PATIENCE),
    "peak": Fact("bytes at the peak beyond the least", "The peak is the least of all…", most=0, beyond=True),
}

Case = record("name kept saved")
DRAW = random.Random(83)
UNEQUAL = [
    Case(f"{n} unequal layers", DRAW.choices(range(1, 31), k=n), DRAW.choices((5, 10, 20, 90), k=n))
    for n in (9, 12, 40)
]
CASES = [
    *UNEQUAL[:2],
    Case("one layer", [5], [7]),
    # As in a ResNet, inputs shrink from layer to layer.
    Case("12 layers that shrink", [2 ** (6 - i // 2) for i in range(12)], [2 ** (7 - i // 2) for i in range(12)]),
    Case("a large layer in the middle", [1] * 9, [2, 2, 2, 2, 100, 2, 2, 2, 2]),
    Case("a large input of the last layer", [1, 100], [2, 1]),
    Case("16 equal layers", [8] * 16, [8] * 16),
    UNEQUAL[2],  # all cuts cannot be tried
]  # fmt: skip


def observe(cut, case: Case) -> dict:
    n, began = len(case.saved), time.monotonic()
    starts = in_time(PATIENCE, cut, list(case.kept), list(case.saved))
    if starts is TOO_SLOW:
        return {"starts": "", "late": math.ceil(time.monotonic() - began), "peak": 0}
    starts = starts.tolist() if type(starts).__module__ in ("numpy", "torch") else starts
    if said := not_cuts(starts, n):
        return {"starts": said}
    pairs = zip(starts, [*starts[1:], n], strict=True)
    peak = peak_bytes([Segment(case.kept[i], sum(case.saved[i:k])) for i, k in pairs])
    return {"starts": "", "late": 0, "peak": int(peak)}


def not_cuts(starts, n: int) -> str:
    if not isinstance(starts, list | tuple) or not all(isinstance(i, int) for i in starts):
        return f"the result is {starts!r:.80}, not a list of whole numbers"
    starts = list(starts)
    short = ", ".join(map(str, starts[:8])) + (", …" if len(starts) > 8 else "") or "no layer"
    rises = starts == sorted(set(starts))
    if starts and rises and starts[0] >= 1 and starts[-1] == n:
        return f"the result is {short}: where segments end, not where they begin"
    if not starts or starts[0] != 0:
        return f"the segments begin at {short}, and none begins at layer 0"
    if not rises:
        return f"the segments begin at {short}, which does not rise"
    late = f"the last segment begins at {starts[-1]}, and the last layer is {n - 1}"
    return late if starts[-1] >= n else ""
