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
        grown = False  # adding up all that is alive takes longer than most operators
        for storage in (t.untyped_storage() for t in tree_leaves(result) if isinstance(t, Tensor)):
            if storage not in self.known and self.made.get(storage) != storage.nbytes():
                self.made[storage], grown = storage.nbytes(), True
        if grown:
            self.most = max(self.most, self.now)
        return result
