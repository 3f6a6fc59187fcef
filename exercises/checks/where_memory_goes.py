"""What the checks of chapter 03 watch, and models that keep what is theirs in unlike ways."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Asked(TorchFunctionMode):
    """Counts what hands a tensor's values over without an operator: ``tolist`` and ``numpy``."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers_read = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.numbers_read += getattr(func, "__name__", "") in ("tolist", "numpy", "__array__")
        return func(*args, **(kwargs or {}))


class Watch(TorchDispatchMode):
    """Counts what passes the dispatcher: bytes of new storages, and numbers that the CPU asks a tensor for."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.numbers = 0
        self.asked = _Asked()

    @property
    def numbers_read(self) -> int:
        return self.numbers + self.asked.numbers_read

    def __enter__(self) -> Watch:
        self.asked.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.asked.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        # A number, or all of them: .item(), bool(), float(), torch.equal, masks and nonzero need the values here.
        name = func._schema.name.partition("::")[2]
        self.numbers += name in ("_local_scalar_dense", "equal", "nonzero")
        there = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and id(tensor.untyped_storage()) not in there:
                self.bytes += tensor.untyped_storage().nbytes()
        return result


class Held(TorchDispatchMode):
    """Keeps the storage of every tensor that is made, so that no address is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.storages += [t.untyped_storage() for t in tree_leaves(result) if isinstance(t, Tensor)]
        return result


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
        self.tenants: list[Any] = [
            lambda: None for _ in self.places
        ]  # weak references, which give None if free

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
