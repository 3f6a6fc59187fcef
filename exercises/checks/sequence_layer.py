"""The layer of exercise 10.3: its tensors, the same on one device, and how an answer differs without dropout."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
) -> list[dict]:
    """For each rank its tokens of all calls' results, and the gradients."""
    whole, inputs = layer.part_of(0, 1), [x.clone().requires_grad_() for x in xs]
    outs = [on_one_device(whole, *both) for both in zip(inputs, kept, strict=True)]
    torch.autograd.backward(outs, list(upstream))
    found = {"result": {"result": torch.cat(outs).detach()}} | gradients(whole, inputs)
    return [
        {part: {name: cut(name, t, rank, ranks) for name, t in of.items()} for part, of in found.items()}
        for rank in range(ranks)
    ]


def _measured(answer: Callable[..., Tensor]) -> dict:
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
    found = launch(_measured, ranks, args=(answer,), backend="gloo")
    layer = make_layer(8, 16, 0).part_of(0, 1)
    out = on_one_device(layer, _input(ranks))
    out.square().sum().backward()
    rows = [_row("the result, its tokens", [r["out"] for r in found], out.detach().chunk(ranks, 1))]
    for name, whole in layer._asdict().items():
        want = [cut(name, whole.grad, rank, ranks) for rank in range(ranks)]
        rows.append(_row(f"gradient of `{name}`", [r[name] for r in found], want))
    return rows, (found[0]["mask"] == found[1]["mask"]).double().mean().item()


def _row(name: str, *of_ranks: list[Tensor]) -> list[str]:
    return [name, *(f"{t.norm():.2f}" for tensors in of_ranks for t in tensors)]
