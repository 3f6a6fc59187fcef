"""Mixed precision under FSDP: units compute in 16 bits, shards and the update keep the dtype of the parameters.

A unit is gathered in the dtype in which it computes, so 16 bits halve the gathers. Gradients are sums over many ranks,
in which 16 bits lose digits, so they can be reduced in another dtype.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.data_parallel.fsdp_unit import ShardedFlat
from course_lib.one_device.nested_tensors import map_tensors


@dataclass(frozen=True)
class MixedPrecision:
    """As PyTorch's ``MixedPrecisionPolicy``; None leaves a dtype as it is.

    Attributes:
        param_dtype: of the gathered parameters, so of forward and backward; None: that of the parameters.
        reduce_dtype: in which gradients are summed over the ranks; None: ``param_dtype``.
        output_dtype: to which a unit's floating-point outputs are cast.
        cast_forward_inputs: cast a unit's floating-point inputs to ``param_dtype``.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True

    def inputs(self, value: Any) -> Any:
        """A unit's arguments as it computes with them."""
        return _cast(value, self.param_dtype if self.cast_forward_inputs else None)

    def outputs(self, value: Any) -> Any:
        return _cast(value, self.output_dtype)


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    if dtype is None:
        return value
    return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, value)


class MixedPrecisionFlat(ShardedFlat):
    """A flat buffer that is gathered in one dtype and whose gradients are reduced in another."""

    def __init__(self, *args: Any, precision: MixedPrecision | None = None, **settings: Any) -> None:
        self.precision = precision or MixedPrecision()
        super().__init__(*args, **settings)

    def buffer(self) -> Tensor:
        dtype = self.precision.param_dtype if self.full.is_floating_point() else None
        return torch.empty_like(self.full, dtype=dtype)

    def own_shard(self) -> Tensor:
        return super().own_shard().to(self.full.dtype)

    def zero_gradient(self) -> Tensor:
        return torch.zeros_like(self.full, dtype=self.precision.reduce_dtype)

    @torch.no_grad()
    def average(self, gradient: Tensor, mean: Tensor | None = None) -> Generator[None, None, Tensor]:
        mean = yield from super().average(gradient, mean)
        return mean.to(self.shard.dtype)
