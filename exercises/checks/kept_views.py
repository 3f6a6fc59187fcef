"""Models that keep views, buffers and parts of their weights for backward, for the check of exercise 03.3."""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class Columns(nn.Module):
    """Keeps one column of a wide tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2)[:, 0].sin()


class Split(nn.Module):
    """Keeps two parts of one tensor, a small and a large one, for two operators."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = (x + 1).split([2, 4], dim=1)
        return left.sin().sum() + right.cos().sum()


class Twice(nn.Module):
    """Two layers read the same input, one of them a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x).tanh() * self.right(x.view(-1, 6))


class Reuse(nn.Module):
    """Keeps five tensors, each in the first place that is free at this moment, whatever the allocator would do."""

    def __init__(self) -> None:
        super().__init__()
        self.places = [np.zeros(8, np.float32) for _ in range(5)]
        self.tenants: list = [lambda: None for _ in self.places]  # weak references, which give None if free

    def forward(self, x: Tensor) -> Tensor:
        for _ in self.places:
            free = next(i for i, tenant in enumerate(self.tenants) if tenant() is None)
            tenant = self.places[free][:]  # the tensor keeps this view alive, and nothing else does
            self.tenants[free] = weakref.ref(tenant)
            kept = torch.from_numpy(tenant).copy_(x)
            del tenant
            x = kept.sin()
        return x


class Halves(nn.Module):
    """Two parts of one weight do the work of two layers; the second begins in the middle of the storage."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([linear(x, self.weight[:8]), linear(x, self.weight[8:])], dim=1)


class Rows(nn.Module):
    """Its buffer is a part of a larger tensor, which the model does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factors", torch.randn(12, 5)[4:8])

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.factors).tanh()


class Detached(nn.Module):
    """Keeps its parameter as another tensor on the same storage: the one without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight.detach()).tanh()
