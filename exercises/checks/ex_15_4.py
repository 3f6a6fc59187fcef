"""15.4: causal attention with a window that skips tiles; the FLOPs of its matrix products are counted."""

import torch
from course_checks.on_ranks import count
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from course_lib.grading.judge import Fact, record

SEES = "a query sees the key at its own place and the `window` − 1 keys before it, as far as there are any."
TWO = "Two matrix products for each tile in which some query of the tile sees some key of the tile…"
FACTS = {
    "shape": Fact("the shape of the result", "Return the output, of the shape of `q`, in float32."),
    "output": Fact("the output", SEES, tolerance=1e-4),
    "kept": Fact("inputs", "`q`, `k` and `v` stay as they are."),
    "flops": Fact("FLOPs of matrix products beyond two for each tile with a visible pair", TWO, most=0, beyond=True),
}  # fmt: skip

Case = record(
    "rows keys window tile_rows tile_keys",
    lambda c: (
        f"{'1 query' if c.rows == 1 else f'{c.rows} queries'}, {count(c.keys, 'key')}, "
        f"a window of {c.window}, tiles of {c.tile_rows} × {c.tile_keys}"
    ),
)
CASES = [
    Case(64, 64, 1000, 16, 16),
    Case(64, 64, 17, 16, 16),  # the window's first key is the first key of a tile
    Case(48, 48, 16, 8, 16),
    Case(50, 50, 20, 16, 12),
    Case(20, 50, 50, 8, 8),
    Case(33, 64, 5, 16, 16),
    Case(1, 40, 40, 16, 16),
    Case(12, 40, 1, 16, 4),
    Case(1, 1, 1, 16, 16),
    Case(24, 24, 8, 32, 32),
    Case(9, 12, 4, 1, 1),
]


def inputs(case: Case) -> list[Tensor]:
    draw = torch.Generator().manual_seed(case.seed)
    return [torch.randn(2, n, 16, generator=draw) for n in (case.rows, case.keys, case.keys)]


def observe(attention, case: Case) -> dict:
    given, before = inputs(case), inputs(case)
    with FlopCounterMode(display=False) as flops:
        got = attention(*given, case.window, case.tile_rows, case.tile_keys)
    if not isinstance(got, Tensor) or got.shape != given[0].shape:
        return {"shape": tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__}
    return {
        "shape": tuple(got.shape),
        "output": got,
        "kept": "" if all(map(torch.equal, given, before)) else "q, k or v has other values",
        "flops": flops.get_total_flops(),
    }
