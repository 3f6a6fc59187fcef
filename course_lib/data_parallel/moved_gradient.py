"""What stands in ``parameter.grad`` under ZeRO after backward, when the gradient itself has been averaged and sharded.

Without it ``parameter.grad`` would be None, and ``clip_grad_norm_(model.parameters(), …)`` would clip nothing and say
nothing. A ``MovedGradient`` has the parameter's shape and no memory, and refuses to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

METADATA = {
    "__get__",
    "__set__",
    "dim",
    "size",
    "numel",
    "stride",
    "element_size",
    "untyped_storage",
    "data_ptr",
}
METADATA |= {"detach_", "requires_grad_", "is_floating_point", "is_complex"}


class MovedGradient(Tensor):
    """A placeholder for the gradient of a parameter."""

    @staticmethod
    def of(parameter: Tensor) -> MovedGradient:
        one = parameter.new_empty(1)
        placeholder = one.as_strided(parameter.shape, [0] * parameter.dim())
        one.untyped_storage().resize_(0)
        return placeholder.as_subclass(MovedGradient)

    def __repr__(self) -> str:
        return f"MovedGradient{tuple(self.shape)}"

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Iterable[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs or {})
        raise ValueError(
            "ZeRO has averaged this gradient and keeps it as shards: clip with the optimizer's max_norm, or with "
            "clip_grad_norm_ on the parameters in its param_groups, and clear it with the optimizer's zero_grad"
        )
