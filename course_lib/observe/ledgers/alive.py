"""Bytes that an answer keeps alive, for targets of memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class Alive(TorchDispatchMode):
    """Bytes of the storages made while it is on, and still alive: now, and at most."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = WeakIdKeyDictionary({tensor.untyped_storage(): True for tensor in known})
        self.made, self.most = WeakIdKeyDictionary(), 0

    @property
    def now(self) -> int:
        return sum(storage.nbytes() for storage in self.made)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage() not in self.known:
                self.made[tensor.untyped_storage()] = True
        self.most = max(self.most, self.now)
        return result
