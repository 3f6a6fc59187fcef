"""Exercise 10.3: the layer that the learner mends, and what its faults do to gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.runtime import launch
from course_lib.tensor_parallel.sequence import gather_sequence, scatter_sequence


class Layer(NamedTuple):
    """A norm and an MLP. Every rank has all of ``norm_weight``, ``norm_bias`` and ``bias``, each (hidden,), and a part
    of ``up``, (wide/p, hidden), and of ``down``, (hidden, wide/p)."""

    norm_weight: Tensor
    norm_bias: Tensor
    up: Tensor
    down: Tensor
    bias: Tensor

    def part_of(self, rank: int, ranks: int) -> Layer:
        """That of one rank, to be trained as the whole is."""
        parts = self._replace(up=self.up.chunk(ranks)[rank], down=self.down.chunk(ranks, 1)[rank])
        return Layer(
            *(p.detach().clone().requires_grad_(w.requires_grad) for p, w in zip(parts, self, strict=True))
        )


def faulty_layer(x: Tensor, layer: Layer, group: ProcessGroup, drop: float) -> Tensor:
    y = F.layer_norm(x, x.shape[-1:], layer.norm_weight, layer.norm_bias)
    y = gather_sequence(y, group)  # (batch, seq, hidden)
    y = F.gelu(F.linear(y, layer.up))  # (batch, seq, wide/p)
    y = F.linear(y, layer.down, layer.bias)  # (batch, seq, hidden), a part of a sum
    y = scatter_sequence(y, group)  # (batch, seq/p, hidden)
    return x + F.dropout(y, drop)


def make_layer(hidden: int, wide: int, seed: int, frozen: bool = False) -> Layer:
    """Whole, in double precision. ``frozen``: what every rank has takes no gradient."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "norm_weight": (hidden,),
        "norm_bias": (hidden,),
        "up": (wide, hidden),
        "down": (hidden, wide),
        "bias": (hidden,),
    }
    tensors = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5
        tensors[name] = values.requires_grad_(name in ("up", "down") or not frozen)
    return Layer(**tensors)


def on_one_device(layer: Layer, x: Tensor, kept: Tensor, drop: float, bias_times: float = 1) -> Tensor:
    """The same layer on all tokens, with given masks: ``kept`` is 1 where an element stays."""
    y = F.layer_norm(x, x.shape[-1:], layer.norm_weight, layer.norm_bias)
    y = F.linear(F.gelu(F.linear(y, layer.up)), layer.down, bias_times * layer.bias)
    return x + y * kept / (1 - drop)


def _measured(seed: int) -> dict[str, Any]:
    ranks, me = dist.get_world_size(), dist.get_rank()
    layer = make_layer(8, 16, seed)
    x = torch.randn(2, 4 * ranks, 8, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    own = layer.part_of(me, ranks)
    out = faulty_layer(x.chunk(ranks, 1)[me], own, dist.group.WORLD, 0.0)
    out.square().sum().backward()
    torch.manual_seed(0)
    dropped = faulty_layer(x.chunk(ranks, 1)[me], own, dist.group.WORLD, 0.5)
    mask = dropped == x.chunk(ranks, 1)[me]
    return {"out": out.detach(), "layer": [p.grad for p in own], "mask": mask}


def measured_against_one_device(ranks: int) -> tuple[list[list[str]], float]:
    """Rows of a table: what comes out without dropout, as norms on each rank and on one device; and in what share of
    the places the masks of the first two ranks agree when half of the elements are dropped."""
    found = launch(_measured, ranks, args=(0,), backend="gloo")
    layer = make_layer(8, 16, 0)
    x = torch.randn(2, 4 * ranks, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    out = on_one_device(layer, x, torch.ones(()), 0.0)
    out.square().sum().backward()
    rows = [_row("the result, its tokens", [r["out"] for r in found], list(out.detach().chunk(ranks, 1)))]
    for i, name in enumerate(Layer._fields):
        axis = {"up": 0, "down": 1}.get(name)
        whole = layer[i].grad
        want = [whole] * ranks if axis is None else list(whole.chunk(ranks, axis))
        rows.append(_row(f"gradient of `{name}`", [r["layer"][i] for r in found], want))
    same = (found[0]["mask"] == found[1]["mask"]).double().mean().item()
    return rows, same


def _row(name: str, got: list[Tensor], want: list[Tensor]) -> list[str]:
    return [name, *(f"{g.norm():.2f}" for g in got), *(f"{w.norm():.2f}" for w in want)]
