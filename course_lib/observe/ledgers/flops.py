"""Floating-point operations, counted as autograd runs them."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib.training.nested_tensors import map_tensors, tensors_in


class Flops(NamedTuple):
    """Of one step; a multiplication and an addition are two. Matrix products and convolutions count."""

    forward: int
    backward: int


def count_flops(model: nn.Module, *inputs: Any) -> Flops:
    """FLOPs of ``model(*inputs)`` and of the backward of the sum of all that it returns.

    Nothing is computed: model and inputs are copied to the device ``meta``, so that any size is quick, and
    attention runs as its matrix products, which on the CPU would be counted as nothing. What is recomputed
    counts for the backward. A causal mask saves nothing: the whole s x s square counts.

    Args:
        model: any module; it stays as it is, and may be on ``meta`` already.
    """
    model = copy.deepcopy(model).to("meta")
    inputs = map_tensors(lambda t: t.to("meta"), inputs)
    with FlopCounterMode(display=False) as counter:
        results = model(*inputs)
        forward = counter.get_total_flops()
        sum(t.sum() for t in tensors_in(results) if t.requires_grad).backward()
    return Flops(forward, counter.get_total_flops() - forward)
