"""What is watched while an answer of chapter 01 runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class ParameterCopies(TorchDispatchMode):
    """Bytes of a model's parameters that are copied into new tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.of = {p.untyped_storage()._cdata for p in model.parameters()}  # the same for every view
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten._to_copy, torch.ops.aten.copy_):
            source = args[1] if func.overloadpacket is torch.ops.aten.copy_ else args[0]
            if source.untyped_storage()._cdata in self.of:
                self.bytes += source.numel() * source.element_size()
        return func(*args, **(kwargs or {}))
