"""Exercise 09.3: a residual block on ranks with three faults, the same on one device, and what each fault gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import launch
from course_lib.tensor_parallel.layers import f, g

# For each tensor that is compared: what it is, and the task's sentence on it.
_SAME = "computes the output and the gradients of one device"
OUTPUTS = {
    "output": ("the output of one device", _SAME),
    "x": ("the gradient of `x`", _SAME),
    "norm": ("the gradients of the norm", _SAME),
    "gain": ("the gradient of `gain`", _SAME),
    "up": ("the gradients of `up`", _SAME),
    "down.weight": ("the gradient of `down.weight`", _SAME),
    "down.bias": ("the gradient of `down.bias`", _SAME),
}


def faulty_block(x: Tensor, norm: nn.LayerNorm, gain: Tensor, up: nn.Linear, down: nn.Linear) -> Tensor:
    group = dist.group.WORLD
    x = f(x, group)
    y = gain * F.gelu(up(norm(x)))
    z = g(down(y), group)
    return x + z


@dataclass(frozen=True)
class Block:
    """Values of a block and of its input. ``up`` and ``down`` hold for each rank (weight, bias) and a weight."""

    x: Tensor  # (tokens, hidden)
    norm: tuple[Tensor, Tensor]  # (hidden,) each
    gain: Tensor  # ()
    up: Sequence[tuple[Tensor, Tensor]]  # (columns, hidden), (columns,)
    down: Sequence[Tensor]  # (hidden, columns)
    bias: Tensor | None  # (hidden,)
    weight: Tensor  # (tokens, hidden), the gradient of the output

    @classmethod
    def drawn(cls, seed: int, ranks: int, tokens: int, hidden: int, columns: int, biased: bool) -> Block:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        return cls(
            x=normal(tokens, hidden),
            norm=(normal(hidden), normal(hidden)),
            gain=1.5 + torch.rand((), generator=generator),
            up=[(normal(columns, hidden), normal(columns)) for _ in range(ranks)],
            down=[normal(hidden, columns) for _ in range(ranks)],
            bias=normal(hidden) if biased else None,
            weight=normal(tokens, hidden),
        )

    def leaves(self, rank: int) -> tuple[Tensor, nn.LayerNorm, nn.Parameter, nn.Linear, nn.Linear]:
        """The arguments of the block on one rank."""
        hidden, columns = self.x.shape[1], len(self.up[rank][0])
        norm, up = nn.LayerNorm(hidden), nn.Linear(hidden, columns)
        down = nn.Linear(columns, hidden, bias=self.bias is not None)
        values = {norm.weight: self.norm[0], norm.bias: self.norm[1]}
        values |= {up.weight: self.up[rank][0], up.bias: self.up[rank][1], down.weight: self.down[rank]}
        if self.bias is not None:
            values[down.bias] = self.bias
        for parameter, value in values.items():
            parameter.data = value.clone()
        return self.x.clone().requires_grad_(), norm, nn.Parameter(self.gain.clone()), up, down


def stepped(answer: Callable[..., Any], block: Block) -> dict[str, Any]:
    """Output and gradients on this rank, and what forward and backward sent."""
    x, norm, gain, up, down = leaves = block.leaves(dist.get_rank())
    with record_traffic() as ahead:
        output = answer(*leaves)
    if not isinstance(output, Tensor):
        return dict.fromkeys(OUTPUTS, output) | {"forward": (0, 0.0), "backward": (0, 0.0)}
    with record_traffic() as back:
        output.backward(block.weight)
    return {
        "output": output.detach().clone(),
        "x": _grad(x),
        "norm": torch.stack([_grad(norm.weight), _grad(norm.bias)]),
        "gain": _grad(gain),
        "up": torch.cat([_grad(up.weight).flatten(), _grad(up.bias)]),
        "down.weight": _grad(down.weight),
        "down.bias": None if block.bias is None else _grad(down.bias),
        "forward": (ahead.traffic.calls, ahead.traffic.sent),
        "backward": (back.traffic.calls, back.traffic.sent),
    }


def _grad(t: Tensor) -> Tensor:
    return torch.zeros_like(t) if t.grad is None else t.grad.detach().clone()


@dataclass(frozen=True)
class _Alone:
    """What one rank's part of the block gives by itself: its part of z, and its parts of the gradients."""

    z: Tensor
    x: Tensor
    norm: Tensor
    gain: Tensor
    up: Tensor
    down: Tensor


def _alone(block: Block) -> list[_Alone]:
    found = []
    for rank in range(len(block.up)):
        x, norm, gain, up, down = block.leaves(rank)
        z = F.linear(gain * F.gelu(up(norm(x))), down.weight)
        z.backward(block.weight)
        of_norm = torch.stack([_grad(norm.weight), _grad(norm.bias)])
        of_up = torch.cat([_grad(up.weight).flatten(), _grad(up.bias)])
        found.append(_Alone(z.detach(), _grad(x), of_norm, _grad(gain), of_up, _grad(down.weight)))
    return found


def _all(parts: Sequence[Tensor]) -> list[Tensor]:
    """The sum, on every rank."""
    return [sum(parts)] * len(parts)


def on_one_device(block: Block) -> dict[str, list[Any]]:
    """For each rank, what is right."""
    alone = _alone(block)
    bias = 0 if block.bias is None else block.bias
    return {
        "output": [block.x + z + bias for z in _all([one.z for one in alone])],
        "x": [block.weight + of_x for of_x in _all([one.x for one in alone])],
        "norm": _all([one.norm for one in alone]),
        "gain": _all([one.gain for one in alone]),
        "up": [one.up for one in alone],
        "down.weight": [one.down for one in alone],
        "down.bias": [block.weight.sum(0)] * len(alone),
    }


def mistakes_of(block: Block) -> dict[str, dict[str, Callable[[], list[Any]]]]:
    """For each compared tensor, programs of what may be wrong with it."""
    alone, right, p = _alone(block), on_one_device(block), len(block.up)
    bias = torch.zeros(()) if block.bias is None else block.bias
    wrong: dict[str, dict[str, Callable[[], list[Any]]]] = {
        "x": {
            "when `f` stands before the residual sum, so that the gradient of the residual is summed as well": (
                lambda: [of_x + (p - 1) * block.weight for of_x in right["x"]]
            ),
            "when the gradient of the block's input is not summed over the ranks": (
                lambda: [block.weight + one.x for one in alone]
            ),
            "when the sum of `z` is summed once more in its backward": (
                lambda: [block.weight + p * sum(one.x for one in alone)] * p
            ),
        },
        "norm": {
            "when `f` stands before the norm, so that each rank has a part of the gradients of its parameters": (
                lambda: [one.norm for one in alone]
            ),
        },
        "gain": {
            "when `gain` is used in the shared computation as it is, so that each rank has a part of its gradient": (
                lambda: [one.gain for one in alone]
            ),
            "when the gradient of `gain` is summed, though every rank has all of it": (
                lambda: [p * gain for gain in right["gain"]]
            ),
        },
    }
    if block.bias is None:
        return wrong
    wrong["output"] = {
        "when every rank adds the bias before the sum": lambda: [o + (p - 1) * bias for o in right["output"]],
        "when the bias is left out": lambda: [o - bias for o in right["output"]],
        "when the bias is multiplied by `gain`": lambda: [
            o + (block.gain - 1) * bias for o in right["output"]
        ],
        "when `z` is not summed over the ranks": lambda: [block.x + one.z + bias for one in alone],
    }
    wrong["down.bias"] = {
        "when a p-th of the bias is added on each rank: its gradient is then a p-th, too": (
            lambda: [of_bias / p for of_bias in right["down.bias"]]
        ),
        "when only rank 0 adds the bias: the other ranks then have no gradient for it": (
            lambda: [of_bias * (rank == 0) for rank, of_bias in enumerate(right["down.bias"])]
        ),
        "when the gradient of the bias is summed, though every rank has all of it": (
            lambda: [p * of_bias for of_bias in right["down.bias"]]
        ),
    }
    return wrong


def measured_against_one_device(block_of: Callable[..., Any], ranks: int) -> list[list[str]]:
    """Rows of a table: is each tensor that of one device, or a part of it?"""
    block = Block.drawn(1, ranks, 5, 4, 3, True)
    found, right = launch(stepped, ranks, args=(block_of, block), backend="gloo"), on_one_device(block)
    rows = []
    for name in OUTPUTS:
        got = [result[name] for result in found]

        def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
            return all(torch.allclose(x, y, atol=1e-4) for x, y in zip(a, b, strict=True))

        verdict = "another one"
        if same(got, right[name]):
            verdict = "that of one device"
        elif same([sum(got)], right[name][:1]):
            verdict = "a part: the sum over the ranks is that of one device"
        rows.append([name if name == "output" else f"gradient of {name}", verdict])
    return rows
