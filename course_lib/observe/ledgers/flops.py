"""Floating-point operations, counted as autograd runs them: of a whole model, and of each of its modules.

A multiplication and an addition are two FLOPs, and one MAC (multiply-accumulate). Matrix products and convolutions
count, as in PyTorch's ``FlopCounterMode``. DeepSpeed's flops profiler counts those of the forward alone, and adds
``elementwise`` operations (see ``elementwise_operations``): its FLOPs are ``2 * macs + elementwise``.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, NamedTuple

from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.observe.ledgers.elementwise import elementwise_operations
from course_lib.observe.ledgers.module_calls import ModuleCalls
from course_lib.observe.ledgers.products import flops_of
from course_lib.one_device.nested_tensors import map_tensors, tensors_in


class Flops(NamedTuple):
    """Of one step; a multiplication and an addition are two. Matrix products and convolutions count."""

    forward: int
    backward: int


class ModuleFlops(NamedTuple):
    """What one module computes in one step, with all modules inside it.

    Args:
        forward, backward: FLOPs of matrix products and convolutions, two for a multiplication and an addition. What
            is recomputed counts for the backward.
        elementwise: operations of activations, norms, pooling and softmax in the forward, as DeepSpeed counts them.
    """

    forward: int = 0
    backward: int = 0
    elementwise: int = 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the forward."""
        return self.forward // 2


def count_flops(model: nn.Module, *inputs: Any) -> Flops:
    """FLOPs of ``model(*inputs)`` and of the backward of the sum of all that it returns.

    Nothing is computed: model and inputs are copied to the device ``meta``, so that any size is quick, and
    attention runs as its matrix products, which on the CPU would be counted as nothing. What is recomputed
    counts for the backward. A causal mask saves nothing: the whole s x s square counts.

    Args:
        model: any module; it stays as it is, and may be on ``meta`` already.
    """
    whole = flops_by_module(model, *inputs)[""]
    return Flops(whole.forward, whole.backward)


def flops_by_module(model: nn.Module, *inputs: Any) -> dict[str, ModuleFlops]:
    """``count_flops`` of every module by its dotted name, in the model's order; ``""`` is the whole model.

    A module's figures hold those of all modules inside it. A backward operation counts for the module in whose
    forward the operation ran that it is the backward of.
    """
    model = copy.deepcopy(model).to("meta")
    inputs = map_tensors(lambda t: t.detach().to("meta").requires_grad_(t.requires_grad), inputs)
    with ModuleCalls(model) as calls, _Count(calls) as count, _Elementwise(calls) as elementwise:
        results = model(*inputs)
        outputs = [t.sum() for t in tensors_in(results) if t.requires_grad]
        if outputs:
            sum(outputs).backward()
    return {
        name: ModuleFlops(count.forward[name], count.backward[name], elementwise.operations[name])
        for name, _ in model.named_modules()
    }


class _Count(TorchDispatchMode):
    def __init__(self, calls: ModuleCalls) -> None:
        super().__init__()
        self.calls = calls
        self.forward: Counter[str] = Counter()
        self.backward: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if flops := flops_of(func, args, kwargs or {}, result):
            into = self.backward if self.calls.in_backward() else self.forward
            for name in self.calls.around():
                into[name] += flops
        return result


class _Elementwise(TorchFunctionMode):
    """Sees the calls of ``torch.nn.functional``, not what they call in turn."""

    def __init__(self, calls: ModuleCalls) -> None:
        super().__init__()
        self.calls = calls
        self.operations: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.calls.in_backward() and (
            count := elementwise_operations(func, args, kwargs or {}, result)
        ):
            for name in self.calls.around():
                self.operations[name] += count
        return result
