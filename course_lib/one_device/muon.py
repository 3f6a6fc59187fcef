"""Muon (Jordan et al., kellerjordan.github.io/posts/muon) for the matrices of the layers, and AdamW for all else.

Muon turns a matrix: every direction of its update gets nearly the same length. Embeddings, the head, norms and biases
are no matrices in this sense, and get AdamW. Updates are those of ``torch.optim.Muon`` and ``torch.optim.AdamW``, bit
for bit. One state as large as a matrix, where Adam has two. Of stacked experts each has matrices of its own: one of
its gate and up projection, which are one product, and one of the way down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from course_lib.models.anatomy import LAYERS
from simulator.inputs.checks import one_of

ADJUST = ("original", "match_rms_adamw")


def orthogonalize(g: Tensor, steps: int = 5) -> Tensor:
    """(n, m), or (e, n, m), a stack of matrices -> the same, singular values near 1: between about 0.7 and 1.2 (Newton
    and Schulz). In 16 bits, as PyTorch does it; in float64 where ``g`` is, so that plans can be compared beyond
    rounding."""
    a, b, c = 3.4445, -4.7750, 2.0315
    add, tall = torch.addmm if g.ndim == 2 else torch.baddbmm, g.shape[-2] > g.shape[-1]
    x = turned_in(g.mT if tall else g)  # the smaller square
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = add(x, add(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def turned_in(g: Tensor) -> Tensor:
    """In the dtype in which it is turned, and in which shards travel."""
    return g if g.dtype == torch.float64 else g.bfloat16()


def muon_groups(named: Iterable[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    """For ``MuonWithAdamW``: the matrices inside the layers, and all others; either may be empty."""
    groups: list[dict[str, Any]] = [{"params": [], "muon": True}, {"params": [], "muon": False}]
    for name, p in named:
        inside = any(fnmatchcase(f".{name}", f"*.{layer}.*") for layer in LAYERS)
        groups[0 if inside and p.ndim in (2, 3) else 1]["params"].append(p)
    return groups


class WholeMatrices:
    """What Muon asks of where its matrices lie. Of shards there is another, ``data_parallel/sharded_muon.py``."""

    def of(self, p: nn.Parameter) -> Iterator[tuple[slice, torch.Size]]:
        """Which elements of a parameter are a matrix, or several alike, and the whole matrix's shape."""
        yield slice(None), p.shape[-2:]

    def turn(self, updates: dict[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
        return {p: orthogonalize(update) for p, update in updates.items()}


class MuonWithAdamW(Optimizer):
    """>>> optimizer = MuonWithAdamW(muon_groups(model.named_parameters()), lr=1e-3)          # doctest: +SKIP

    Args:
        params: groups, of which those with ``"muon": True`` hold matrices.
        adjust_lr_fn: as in ``torch.optim.Muon``: ``"match_rms_adamw"`` makes Muon's updates as long as AdamW's
            (arXiv:2502.16982), so that one learning rate fits both.

    Attributes:
        places: where the matrices lie: each on this device, or in shards.

    Raises:
        ValueError: ``adjust_lr_fn`` is not known.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        adjust_lr_fn: str = "match_rms_adamw",
    ) -> None:
        one_of("adjust_lr_fn", adjust_lr_fn, ADJUST)
        self.places = WholeMatrices()
        self.adamw = AdamW([{"params": []}], lr=lr, weight_decay=weight_decay)
        own = {"momentum": momentum, "adjust_lr_fn": adjust_lr_fn, "muon": False}
        super().__init__(params, self.adamw.defaults | own)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return what ``closure`` returned, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.adamw.state = self.state
        self.adamw.param_groups = [group for group in self.param_groups if not group["muon"]]
        self.adamw.step()
        settings = {p: group for group in self.param_groups if group["muon"] for p in group["params"]}
        updates = {
            p: self.momentum(p, group["momentum"]) for p, group in settings.items() if p.grad is not None
        }
        turned = self.places.turn(updates)
        for p in updates:
            lr, decay, adjust = (settings[p][key] for key in ("lr", "weight_decay", "adjust_lr_fn"))
            p.mul_(1 - lr * decay)
            for elements, shape in self.places.of(p):
                p.view(-1)[elements].add_(turned[p].reshape(-1)[elements], alpha=-lr * length(shape, adjust))
        return loss

    def momentum(self, p: nn.Parameter, mu: float) -> Tensor:
        """Nesterov's."""
        gradient, state = p.grad.as_subclass(Tensor), self.state[p]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(p)
        return gradient.lerp(state["momentum_buffer"].lerp_(gradient, 1 - mu), mu)


def length(shape: torch.Size, adjust_lr_fn: str) -> float:
    """Of an update, as a multiple of the learning rate."""
    rows, columns = shape
    return math.sqrt(max(1, rows / columns)) if adjust_lr_fn == "original" else 0.2 * math.sqrt(max(shape))
