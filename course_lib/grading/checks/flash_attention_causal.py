"""The check of 15.4: causal attention with a window that skips tiles, with the FLOPs of its matrix products counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from course_lib.grading.checks.flash_attention import exact
from course_lib.grading.report import Report, check

Attention = Callable[[Tensor, Tensor, Tensor, int, int, int], Tensor]


class Causal(NamedTuple):
    """One case: as many queries as there are new tokens, keys of all tokens, the window, and the tiles."""

    rows: int
    keys: int
    window: int
    tile_rows: int
    tile_keys: int

    def __str__(self) -> str:
        queries = "1 query" if self.rows == 1 else f"{self.rows} queries"
        keys = "1 key" if self.keys == 1 else f"{self.keys} keys"
        return f"{queries}, {keys}, a window of {self.window}, tiles of {self.tile_rows} × {self.tile_keys}"


CASES = (
    Causal(64, 64, 1000, 16, 16),
    Causal(64, 64, 17, 16, 16),  # the window's first key is the first key of a tile
    Causal(48, 48, 16, 8, 16),
    Causal(50, 50, 20, 16, 12),
    Causal(20, 50, 50, 8, 8),
    Causal(33, 64, 5, 16, 16),
    Causal(1, 40, 40, 16, 16),
    Causal(12, 40, 1, 16, 4),
    Causal(1, 1, 1, 16, 16),
    Causal(24, 24, 8, 32, 32),
    Causal(9, 12, 4, 1, 1),
)


def _hidden(
    q: Tensor, k: Tensor, window: int, *, place: int | None = None, own: int = 1, more: int = 0
) -> Tensor:
    """True where a query does not see a key: (rows, keys). The last query stands at the last key."""
    place = k.shape[1] - q.shape[1] if place is None else place
    places, keys = torch.arange(q.shape[1])[:, None] + place, torch.arange(k.shape[1])
    return (keys >= places + own) | (keys <= places - window - more)


def _tiles(seen: Tensor, case: Causal, *, visible: bool = True) -> int:
    """Pairs of a query and a key in the tiles, or in those that hold a visible pair."""
    tiles = [tile for rows in seen.split(case.tile_rows) for tile in rows.split(case.tile_keys, 1)]
    return sum(tile.numel() for tile in tiles if not visible or tile.any())


@check
def check_15_4(report: Report, attention: Attention) -> None:
    torch.manual_seed(report.seed())
    for case in CASES:
        with report.case(str(case)):
            _try(report, attention, case)


def _try(report: Report, attention: Attention, case: Causal) -> None:
    heads, size = 2, 16
    q, k, v = (torch.randn(heads, length, size) for length in (case.rows, case.keys, case.keys))
    before = [t.clone() for t in (q, k, v)]
    with FlopCounterMode(display=False) as flops:
        got = attention(q, k, v, case.window, case.tile_rows, case.tile_keys)
    hidden = _hidden(*before[:2], case.window)
    finite = not isinstance(got, Tensor) or bool(got.isfinite().all())
    report.close(
        "the output",
        got,
        exact(*before, hidden)[0],
        tolerance=1e-4,
        mistakes=WRONG_OUTPUTS,
        given=(*before, *case[2:]),
        task="a query sees the key at its own place and the `window` − 1 keys before it, as far as there are any.",
        likely=None
        if finite
        else "a query sees no key of a tile, and minus infinity is subtracted from minus infinity",
    )
    same = all(one.equal(other) for one, other in zip((q, k, v), before, strict=True))
    report.true(
        same,
        "q, k and v are as they were",
        "q, k or v has other values",
        task="`q`, `k` and `v` stay as they are.",
    )
    one, seen = 4 * heads * size, ~hidden
    causal = ~_hidden(*before[:2], case.keys)
    longer = ~_hidden(*before[:2], case.window, more=1)
    report.at_most(
        "FLOPs of matrix products",
        flops.get_total_flops(),
        one * _tiles(seen, case),
        mistakes={
            "when no tile is skipped": one * _tiles(seen, case, visible=False),
            "when tiles before the window are not skipped": one * _tiles(causal, case),
            "when a tile is computed whose last key is the last one before the window": one
            * _tiles(longer, case),
            "when each product is computed twice": 2 * one * _tiles(seen, case),
        },
        task="Two matrix products for each tile in which some query of the tile sees some key of the tile, and none "
        "for other tiles.",
    )


def _seen(q: Tensor, k: Tensor, v: Tensor, window: int, *tiles: int, **wrong: int) -> Tensor:
    return exact(q, k, v, _hidden(q, k, window, **wrong))[0]


def _by_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    tile_rows: int,
    tile_keys: int,
    *,
    last: bool = True,
    first: bool = True,
    hide: dict | None = None,
) -> Tensor:
    """What comes out where tiles are skipped by another query of the tile, or nothing is hidden inside of one."""
    before, keys, begins = k.shape[1] - q.shape[1], torch.arange(k.shape[1]), []
    hidden = _hidden(q, k, **({"window": window} | (hide or {})))
    for begin in range(0, q.shape[1], tile_rows):
        end = min(begin + tile_rows, q.shape[1]) - 1
        until = before + (end if last else begin)
        since = max(0, before + (begin if first else end) - window + 1) // tile_keys * tile_keys
        begins.append(((keys // tile_keys > until // tile_keys) | (keys < since)).expand(end - begin + 1, -1))
    return exact(q, k, v, hidden | torch.cat(begins))[0]


WRONG_OUTPUTS: dict[str, Callable[..., Tensor]] = {
    "when the first query stands at the first key": lambda *given: _seen(*given, place=0),
    "when a query does not see its own key": lambda *given: _seen(*given, own=0),
    "when a query sees the key behind its own": lambda *given: _seen(*given, own=2),
    "when the window has one key too many": lambda *given: _seen(*given, more=1),
    "when the window has one key too few": lambda *given: _seen(*given, more=-1),
    "when the window is not used": lambda q, k, v, window, *tiles: _seen(q, k, v, k.shape[1]),
    "when no key is hidden": lambda q, k, v, *rest: exact(q, k, v)[0],
    "when tiles of keys are skipped that not the first, but a later query of the tile sees": (
        lambda *given: _by_tiles(*given, last=False)
    ),
    "when tiles of keys are skipped that not the last, but an earlier query of the tile sees": (
        lambda *given: _by_tiles(*given, first=False)
    ),
    "when keys inside of a tile are not hidden": lambda *given: _by_tiles(
        *given, hide={"window": 10**6, "own": 10**6}
    ),
    "when keys before the window are only skipped tile by tile": lambda *given: _by_tiles(
        *given, hide={"window": 10**6}
    ),
    "when keys behind a query are only skipped tile by tile": lambda *given: _by_tiles(
        *given, hide={"own": 10**6}
    ),
    "when the window of the mask has one key too many": lambda *given: _by_tiles(*given, hide={"more": 1}),
    "when the scores are not divided by the root of the size": lambda q, k, v, window, *tiles: _seen(
        q * math.sqrt(q.shape[-1]), k, v, window
    ),
}
