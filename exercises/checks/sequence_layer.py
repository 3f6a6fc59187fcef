"""The layer of exercise 10.3: its tensors, the same on one device, and how an answer differs without dropout."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

from course_lib.runtime import launch

CUT = {"up": 0, "down": 1, "x": 1, "result": 1}  # along which dimension
PARTS = {"x": ("x",), "matrices": ("up", "down"), "norm": ("norm_weight", "norm_bias"), "bias": ("bias",)}


class Layer(NamedTuple):
    """A norm and an MLP. Every rank has all of ``norm_weight``, ``norm_bias`` and ``bias``, each (hidden,), and a part
    of ``up``, (wide/p, hidden), and of ``down``, (hidden, wide/p)."""

    norm_weight: Tensor
    norm_bias: Tensor
    up: Tensor
    down: Tensor
    bias: Tensor

    def part_of(self, rank: int, ranks: int, frozen: bool = False) -> "Layer":
        """That of one rank, as leaves. ``frozen``: what every rank has takes no gradient."""
        parts = {name: cut(name, t, rank, ranks).clone() for name, t in self._asdict().items()}
        return Layer(**{name: t.requires_grad_(name in CUT or not frozen) for name, t in parts.items()})


def cut(name: str, t: Tensor, rank: int, ranks: int) -> Tensor:
    """What one rank has of it."""
    return t.chunk(ranks, CUT[name])[rank] if name in CUT else t


def make_layer(hidden: int, wide: int, seed: int) -> Layer:
    """Whole, in double precision."""
    draw = torch.Generator().manual_seed(seed)
    shapes = ((hidden,), (hidden,), (wide, hidden), (hidden, wide), (hidden,))
    return Layer(*(torch.randn(s, generator=draw, dtype=torch.float64) / s[-1] ** 0.5 for s in shapes))


def on_one_device(layer: Layer, x: Tensor, kept: Tensor | float = 1.0) -> Tensor:
    """The same layer on all tokens. ``kept`` is what dropout multiplies by: 0, or 1 / (1 - drop)."""
    y = layer_norm(x, x.shape[-1:], layer.norm_weight, layer.norm_bias)
    return x + kept * linear(gelu(linear(y, layer.up)), layer.down, layer.bias)


def gradients(layer: Layer, inputs: Sequence[Tensor]) -> dict[str, dict[str, Tensor | None]]:
    """By part, then by name."""
    found = {"x": torch.cat([x.grad for x in inputs])} | {name: t.grad for name, t in layer._asdict().items()}
    return {part: {name: found[name] for name in names} for part, names in PARTS.items()}


def of_one_device(
    layer: Layer, xs: Sequence[Tensor], upstream: Sequence[Tensor], kept: Sequence[Tensor | float], ranks: int
) -> list[dict[str, Any]]:
    """For each rank its tokens of all calls' results, and the gradients."""
    whole, inputs = layer.part_of(0, 1), [x.clone().requires_grad_() for x in xs]
    outs = [on_one_device(whole, *both) for both in zip(inputs, kept, strict=True)]
    torch.autograd.backward(outs, list(upstream))
    found = {"result": {"result": torch.cat(outs).detach()}} | gradients(whole, inputs)
    return [
        {part: {name: cut(name, t, rank, ranks) for name, t in of.items()} for part, of in found.items()}
        for rank in range(ranks)
    ]


def flat(values: Tensor | dict[str, Tensor | None]) -> Tensor:
    """End to end; what is None is left out."""
    found = values.values() if isinstance(values, dict) else [values]
    return torch.cat([t.flatten() for t in found if t is not None])


def with_dropout(
    layer: Layer,
    xs: Sequence[Tensor],
    upstream: Sequence[Tensor],
    drop: float,
    seen: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Texts: whether masks are as they should be, and the rest as on one device that drops the same elements. Without
    dropout nothing is wrong with the masks, and no more is said."""
    found = dict.fromkeys(("share", "ranks", "calls"), "")
    if not drop:
        return found
    dropped = [torch.cat([one["dropped"][call] for one in seen], 1) for call in range(len(xs))]
    right = of_one_device(layer, xs, upstream, [(~d).double() / (1 - drop) for d in dropped], len(seen))
    for key in ("result", *PARTS):
        name = f"the gradient of {' and '.join(PARTS[key])}" if key in PARTS else "the result"
        said = f"{name} is not what one device gives that drops the same elements"
        alike = [
            torch.allclose(flat(one[key]), flat(want[key])) for one, want in zip(seen, right, strict=True)
        ]
        found[key] = ["" if same else said for same in alike]
    share = dropped[0].double().mean().item()
    if abs(share - drop) > 0.12:
        found["share"] = f"{share:.0%} of the elements are as in `x`, and `drop` is {drop:.0%}"
    if any(one["dropped"][0].equal(other["dropped"][0]) for one, other in combinations(seen, 2)):
        found["ranks"] = "the ranks drop the same places of their tokens"
    if any(a.equal(b) for one in seen for a, b in combinations(one["dropped"], 2)):
        found["calls"] = "the second call drops the same places as the first"
    return found


def _measured(answer: Callable[..., Tensor]) -> dict[str, Any]:
    ranks, me = dist.get_world_size(), dist.get_rank()
    x, layer = _input(ranks).chunk(ranks, 1)[me], make_layer(8, 16, 0).part_of(me, ranks)
    out = answer(x, layer, dist.group.WORLD, 0.0)
    out.square().sum().backward()
    torch.manual_seed(0)
    mask = answer(x, layer, dist.group.WORLD, 0.5) == x
    return {"out": out.detach(), "mask": mask, **{name: p.grad for name, p in layer._asdict().items()}}


def _input(ranks: int) -> Tensor:
    return torch.randn(2, 4 * ranks, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def measured_against_one_device(answer: Callable[..., Tensor], ranks: int) -> tuple[list[list[str]], float]:
    """Rows of a table: what comes out without dropout, as norms on each rank and on one device; and in what share of
    the places the masks of the first two ranks agree when half of the elements are dropped."""
    found, layer = (
        launch(_measured, ranks, args=(answer,), backend="gloo"),
        make_layer(8, 16, 0).part_of(0, 1),
    )
    out = on_one_device(layer, _input(ranks))
    out.square().sum().backward()
    rows = [_row("the result, its tokens", [r["out"] for r in found], out.detach().chunk(ranks, 1))]
    for name, whole in layer._asdict().items():
        want = [cut(name, whole.grad, rank, ranks) for rank in range(ranks)]
        rows.append(_row(f"gradient of `{name}`", [r[name] for r in found], want))
    return rows, (found[0]["mask"] == found[1]["mask"]).double().mean().item()


def _row(name: str, *of_ranks: list[Tensor]) -> list[str]:
    return [name, *(f"{t.norm():.2f}" for tensors in of_ranks for t in tensors)]
