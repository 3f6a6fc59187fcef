"""Operations on single elements, as DeepSpeed's flops profiler counts them beside matrix products.

The rules are those of ``deepspeed.profiling.flops_profiler`` 0.16: it counts calls of ``torch.nn.functional`` and of a
few functions of ``torch`` in the forward, one operation an element for activations, softmax, pooling, ``torch.add`` and
``torch.mul``, 5 for a norm with weights and 4 without (a batch norm in evaluation: 2 and 1), and one for each output of
a convolution with a bias. It counts nothing for the biases of linear layers, for operators (``x + y``, ``x * y``),
embeddings and dropout, and for what runs inside fused attention. One difference: it counts the methods ``x.add(y)`` and
``x.mul(y)``, which here look like the operators and count for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

_ONE_AN_INPUT = {
    F.relu, F.relu6, F.elu, F.leaky_relu, F.prelu, F.silu, F.gelu, F.softmax,
    F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, torch.max_pool1d, torch.max_pool2d, torch.max_pool3d,
    F.max_pool1d, F.max_pool2d, F.max_pool3d,
    F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d,
}  # fmt: skip
_ONE_AN_OUTPUT = {torch.add, torch.mul}
_NORMS = {F.layer_norm: 2, F.group_norm: 2, F.instance_norm: 3}  # place of the weight among the arguments
_CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}


def elementwise_operations(func: Any, args: tuple, kwargs: Mapping[str, Any], result: Any) -> int:
    """Of one call in the forward; 0 for a function that does not count."""
    x = args[0] if args else kwargs.get("input")
    if func in _ONE_AN_INPUT:
        return x.numel()
    if func in _ONE_AN_OUTPUT:
        return result.numel()
    if func in _NORMS:
        return x.numel() * (5 if _argument(args, kwargs, _NORMS[func], "weight") is not None else 4)
    if func is F.batch_norm:
        weighted = _argument(args, kwargs, 3, "weight") is not None
        training = _argument(args, kwargs, 5, "training")
        return x.numel() * ((5 if weighted else 4) if training else (2 if weighted else 1))
    if func in _CONVOLUTIONS and _argument(args, kwargs, 2, "bias") is not None:
        return result.numel()
    return 0


def _argument(args: tuple, kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)
