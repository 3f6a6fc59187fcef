"""What learners get wrong in chapter 15, as programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

Part = tuple[Tensor, Tensor]  # an output (…, rows, size) and a logsumexp (…, rows)


def _merged(
    parts: list[Part],
    *,
    equal: bool = False,
    divide: bool = True,
    rescale: bool = True,
    swapped: bool = False,
    guarded: bool = True,
    weighted: bool = True,
    returned: str = "logsumexp",
) -> Part:
    """Parts merged one after the other, wrong in one thing."""
    output, total = parts[0]
    output = output.float()
    count = 1
    for other, its in parts[1:]:
        largest = torch.maximum(total, its)
        safe = largest.masked_fill(largest == -math.inf, 0.0) if guarded else largest
        before, new = (total - safe).exp(), (its - safe).exp()
        if swapped:
            before, new = new, before
        both = before + new
        w_before, w_new = (w / both.masked_fill(both == 0, 1.0) if divide else w for w in (before, new))
        if not guarded:
            w_before, w_new = before / both, new / both
        if equal:
            w_before, w_new = (
                torch.full_like(total, part) for part in (count / (count + 1), 1 / (count + 1))
            )
        if not rescale:
            w_before = torch.ones_like(total)
        if not weighted:
            w_new = torch.ones_like(total)
        output = w_before[..., None] * output + w_new[..., None] * other
        total, count = safe + both.log(), count + 1
    every = torch.stack([part[1] for part in parts])
    return output, {"logsumexp": total, "maximum": every.amax(0), "sum": every.sum(0)}[returned]


def _as_if_undivided(parts: list[Part]) -> Part:
    """The parts' outputs are taken for sums: brought to the largest logsumexp so far, added, and divided at the end."""
    largest = torch.full_like(parts[0][1], -math.inf)
    output, total = torch.zeros_like(parts[0][0], dtype=torch.float32), torch.zeros_like(largest)
    for other, its in parts:
        now = torch.maximum(largest, its)
        safe = now.masked_fill(now == -math.inf, 0.0)
        factor = (largest - safe).exp()
        output = factor[..., None] * output + other
        total, largest = factor * total + (its - safe).exp(), now
    return output / total.masked_fill(total == 0, 1.0)[..., None], largest + total.log()


MERGED: dict[str, Callable[[list[Part]], Part]] = {
    "when every part has the same weight": partial(_merged, equal=True),
    "when the weights of the parts are not divided by their sum": partial(_merged, divide=False),
    "when the running output is not weighted again as a part is added": partial(_merged, rescale=False),
    "when the output of a new part is added without its weight": partial(_merged, weighted=False),
    "when the outputs of the parts are added as if they were not divided yet": _as_if_undivided,
    "when the weights of two parts are exchanged": partial(_merged, swapped=True),
    "when minus infinity is subtracted from minus infinity": partial(_merged, guarded=False),
    "when the largest logsumexp is returned": partial(_merged, returned="maximum"),
    "when the logsumexps are added": partial(_merged, returned="sum"),
}


def _tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tile_rows: int,
    tile_keys: int,
    *,
    scale: float | None = None,
    keep_output: bool = False,
    keep_sum: bool = False,
    divide: bool = True,
    each: bool = False,
    whole_keys: bool = False,
    no_maximum: bool = False,
    begin: float = -math.inf,
    result: Callable[[Tensor, Tensor], Tensor] = lambda largest, total: largest + total.log(),
) -> tuple[Tensor, Tensor]:
    """Attention tile by tile, wrong in one thing."""
    dtype, size, keys = q.dtype, q.shape[-1], k.shape[-2]
    q, k, v = q.float(), k.float(), v.float()
    outputs, sums = [], []
    for rows in q.split(tile_rows, -2):
        largest = rows.new_full(rows.shape[:-1], begin)
        total, output, tiles = torch.zeros_like(largest), torch.zeros_like(rows), 0
        for start in range(0, keys - keys % tile_keys if whole_keys else keys, tile_keys):
            scores = rows @ k[..., start : start + tile_keys, :].transpose(-1, -2)
            scores = scores * (scale if scale is not None else size**-0.5)
            now = torch.zeros_like(largest) if no_maximum else torch.maximum(largest, scores.amax(-1))
            weights, factor = (scores - now[..., None]).exp(), (largest - now).exp()
            if no_maximum:
                factor = torch.ones_like(largest)
            if each:
                weights, factor = scores.softmax(-1), torch.ones_like(factor)
            total = (total if keep_sum else total * factor) + weights.sum(-1)
            output = output if keep_output else output * factor[..., None]
            output, largest, tiles = output + weights @ v[..., start : start + tile_keys, :], now, tiles + 1
        outputs.append(output / total[..., None] if divide else output)
        sums.append(result(largest, total))
    return torch.cat(outputs, -2).to(dtype), torch.cat(sums, -1)


WRONG_TILES: dict[str, dict] = {
    "when scores are not divided by the root of the size": {"scale": 1.0},
    "when the running output is not rescaled as the maximum grows": {"keep_output": True},
    "when the running sum is not rescaled as the maximum grows": {"keep_sum": True},
    "when neither the running output nor the running sum is rescaled as the maximum grows": {
        "keep_output": True,
        "keep_sum": True,
    },
    "when the output is not divided by the sum": {"divide": False},
    "when each tile has a softmax of its own, and the tiles are averaged": {"each": True},
    "when a smaller tile of keys at the end is left out": {"whole_keys": True},
    "when no maximum is subtracted": {"no_maximum": True},
    "when the running maximum begins with 0": {"begin": 0.0},
}
TILED_OUTPUTS = {s: lambda *given, o=o: _tiled(*given, **o)[0] for s, o in WRONG_TILES.items()}
TILED_LOGSUMEXPS = {
    s: lambda *given, o=o: _tiled(*given, **o)[1] for s, o in WRONG_TILES.items() if "each" not in o
} | {
    "when the maximum is not added to the logarithm of the sum": lambda *given: _tiled(
        *given, result=lambda largest, total: total.log()
    )[1],
    "when the sum is returned, and not its logarithm": lambda *given: _tiled(
        *given, result=lambda largest, total: total
    )[1],
    "when the maximum is returned": lambda *given: _tiled(*given, result=lambda largest, total: largest)[1],
    "when the logarithm of the sum is subtracted from the maximum": lambda *given: _tiled(
        *given, result=lambda largest, total: largest - total.log()
    )[1],
}
