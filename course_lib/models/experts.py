"""A mixture of experts in place of an MLP (arXiv:1701.06538): a router sends each token to ``k`` of E experts.

Shapes in comments: ``tokens``, ``hidden``, ``width`` (inner, of one expert); ``copies``: a token has one for each of
its experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from simulator.inputs.checks import positive

GROUPED = (torch.float32, torch.bfloat16, torch.float16)  # dtypes of F.grouped_mm


class Experts(nn.Module):
    """SwiGLU MLPs whose matrices are stacked, with transformers' names, so that one product can serve all of them.

    An expert may get no copy at all; its gradient is zero then.

    Attributes:
        linears: for each expert what is called in place of ``F.linear``, on the way up and down; None: as usual.
    """

    linears: Sequence[tuple[Callable[..., Tensor], Callable[..., Tensor]]] | None = None

    def __init__(self, experts: int, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden, width))
        for p in self.parameters():
            nn.init.normal_(p, std=0.02)

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        """Copies ``(copies, hidden)`` that lie by expert, ``sizes`` of each -> what the experts make of them."""
        gate_up, down = self.gate_up_proj.to(x.dtype), self.down_proj.to(x.dtype)
        linears = self.linears or [(F.linear, F.linear)] * len(gate_up)
        if self.linears is None and grouped_fits(gate_up) and grouped_fits(down):
            ends = sizes.cumsum(0, dtype=torch.int32)
            return F.grouped_mm(swiglu(F.grouped_mm(x, gate_up.mT, offs=ends)), down.mT, offs=ends)
        # unbind, because an index would make a gradient of all experts for each of them
        parts = zip(x.split(sizes.tolist()), gate_up.unbind(), down.unbind(), linears, strict=True)
        return torch.cat([f(swiglu(g(part, up)), back) for part, up, back, (g, f) in parts])


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def grouped_fits(weights: Tensor) -> bool:
    """Whether ``F.grouped_mm`` takes them: it knows no float64, and rows and columns must be multiples of 16 bytes."""
    return weights.dtype in GROUPED and all(n * weights.itemsize % 16 == 0 for n in weights.shape[1:])


class SparseMLP(nn.Module):
    """A router and experts: ``(batch, seq, hidden)`` in and out. ``route`` is the family's own.

    Attributes:
        capacity_factor: in training, an expert takes at most so many times a fair share of a sequence's copies, those
            that come first (see ``first_come``), and drops the others: they add nothing to their token. None: no copy
            is dropped, as in evaluation.
        chosen: the experts of the last tokens that went through, ``(tokens, k)``.
        probabilities: of these tokens, before the choice, ``(tokens, experts)``.
        sizes: how many copies each expert took in the last forward, ``(experts,)``.
        load: how many each was chosen for in training since the last ``balance``, ``(experts,)``; None: none.
        speed: of the balance; 0: the family has none.
        alpha: the weight of ``balance_loss``; 0: there is none.
        share: what the balance of one sequence counts in the loss; ``parallelize`` sets it, and the gradient comes
            without a loss that is passed on. None: ``balanced`` is to be added to the loss, see ``balance_loss``.
    """

    speed = alpha = 0.0
    share: float | None = None
    balanced: Tensor | None = None

    def __init__(self, experts: Experts, gate: nn.Module, capacity_factor: float | None = None) -> None:
        super().__init__()
        if capacity_factor is not None:
            positive(capacity_factor=capacity_factor)
        self.capacity_factor = capacity_factor
        self.gate, self.experts = gate, experts
        self.load: Tensor | None = None  # no buffer, because each rank has its own

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """``(tokens, hidden)`` -> the weights and the numbers of each token's experts, ``(tokens, k)``.

        It also sets ``probabilities``.
        """
        raise NotImplementedError

    def balance(self, load: Tensor) -> None:
        """After an optimizer's step: make it less likely that what had the most is chosen."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)  # (tokens, hidden)
        weights, self.chosen = self.route(tokens)
        if self.training and self.alpha:
            loss = self.alpha * imbalance(self.probabilities, self.chosen, len(x))
            if self.share is None:
                self.balanced = loss / len(x)
            else:
                weights = WithLoss.apply(weights, loss * self.share)
        k = self.chosen.shape[1]
        expert, copies = self.chosen.flatten().sort(stable=True)  # by expert; copy i is one of token i // k
        dtype, device = x.dtype, x.device.type
        if torch.is_autocast_enabled(device) and dtype != torch.float64:  # which autocast leaves as it is
            dtype = torch.get_autocast_dtype(device)
        experts = self.gate.weight.shape[0]
        self.sizes = expert.bincount(minlength=experts)
        if self.training:
            self.load = self.sizes if self.load is None else self.load + self.sizes
            if self.capacity_factor is not None:
                each = len(copies) // len(x)  # copies of a sequence
                most = math.ceil(self.capacity_factor * each / experts)
                copies = copies[first_come(expert * len(x) + copies // each, most)]
                self.sizes = self.chosen.flatten()[copies].bincount(minlength=experts)
        sent = tokens.to(dtype).index_select(0, copies // k)  # (copies, hidden)
        came = self.experts(sent, self.sizes)
        y = came.new_zeros(len(tokens) * k, came.shape[1]).index_copy(0, copies, came)
        y = y.unflatten(0, (-1, k))  # (tokens, k, hidden)
        return (weights.to(y.dtype)[:, None] @ y).to(x.dtype).view_as(x)


def first_come(group: Tensor, most: int) -> Tensor:
    """Which copies are kept where a group of them, those of one sequence for one expert, is at most ``most``.

    The groups are GShard's (arXiv:2006.16668, 2.2), as large as a sequence: so what is dropped is the same in any
    microbatch and on any rank. The first come first, whatever their weights: a later token pushes no earlier one out,
    and the model does not see the future (arXiv:2101.03961 does so, too).

    Args:
        group: of each copy, ascending; of a group in the order of the tokens. ``(copies,)``.
    """
    return torch.arange(len(group), device=group.device) - torch.searchsorted(group, group) < most


@torch.no_grad()
def balance(model: nn.Module, total: Callable[[Tensor], Tensor] = lambda load: load) -> None:
    """``SparseMLP.balance`` of every layer. Call it after each step, or, under ``parallelize``, leave it to that.

    Args:
        total: from a layer's load on this device to that on all.
    """
    for layer in sparse_layers(model):
        if layer.speed and layer.load is not None:
            layer.balance(total(layer.load))
            layer.load = None


def imbalance(p: Tensor, chosen: Tensor, sequences: int) -> Tensor:
    """DeepSeek-V3's loss of a layer (arXiv:2412.19437, 17 to 20): E (f_1 P_1 + ... + f_E P_E), summed over sequences.

    f is an expert's share of a sequence's copies, and P its mean probability: 1 where all experts are alike, and more
    where the probable ones get more. A sequence's loss knows nothing of the others, so it is the same in any
    microbatch and on any rank.

    Args:
        p: ``(tokens, E)``; a token's need not add up to 1.
        chosen: ``(tokens, k)``.
    """
    f = torch.zeros_like(p).scatter_(1, chosen, 1 / chosen.shape[1]).unflatten(0, (sequences, -1)).mean(1)
    mean = (p / p.sum(1, keepdim=True)).unflatten(0, (sequences, -1)).mean(1)
    return p.shape[1] * (f * mean).sum()


def balance_loss(model: nn.Module) -> Tensor | float:
    """Of the last forward of all layers: on one device, add it to the loss. ``parallelize`` does without."""
    return sum(layer.balanced for layer in sparse_layers(model) if layer.balanced is not None)


def sparse_layers(model: nn.Module) -> list[SparseMLP]:
    return [module for module in model.modules() if isinstance(module, SparseMLP)]


class WithLoss(torch.autograd.Function):
    """``x`` as it is. In its backward ``loss`` gets the gradient 1, as if it had been added to the model's loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.one = torch.ones_like(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, ctx.one
