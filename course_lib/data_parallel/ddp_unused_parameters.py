"""DDP for models that use only some of their parameters in a forward pass, as PyTorch's ``find_unused_parameters``.

A bucket that waits for the gradient of an unused parameter would wait for ever. So after each forward pass the
autograd graph is searched for the parameters that its backward pass will reach, and buckets wait for these only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.data_parallel.ddp import DDP, Bucket
from course_lib.one_device.nested_tensors import tensors_in


class DDPWithUnusedParameters(DDP):
    """A gradient that a rank did not compute counts as zeros in the average; one that no rank computed stays as it is.

    The search costs a walk through the graph after each forward pass, and a small all-reduce after each backward
    pass tells which parameters some rank has used. Arguments are those of ``DDP``. Backward must reach at least one
    parameter on every rank.

    Raises:
        RuntimeError: in backward, for a gradient that the search did not foresee, because forward hides its output.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._used: set[Tensor] = set()  # in backward passes since the last average, those under no_sync too

    def forward(self, *inputs: Any, **named: Any) -> Any:
        first = not self._forward_pending  # else the loss takes the gradients of several forward passes
        output = super().forward(*inputs, **named)
        if torch.is_grad_enabled() and self.synchronising:
            reached = parameters_in_graph(output)
            self._expected = reached if first else self._expected | reached
            self._wait_for_gradients()
        return output

    def _gradient_is_ready(self, bucket: Bucket, parameter: Tensor) -> None:
        if self._averages and bucket.work is not None:
            raise RuntimeError(
                f"the gradient of {self._name_of(parameter)} came after its bucket was sent: let forward return "
                "tensors in tuples, lists, dicts or dataclasses, where the graph can be found"
            )
        self._used.add(parameter)
        super()._gradient_is_ready(bucket, parameter)

    def _finish(self) -> None:
        for bucket in self.buckets:
            bucket.waiting.clear()  # an output may have had no part in the loss
            bucket.start()
        unused = {p: p.grad for p in self._used_by_no_rank()}
        super()._finish()
        for parameter, gradient in unused.items():
            parameter.grad = gradient
        self._used.clear()

    def _used_by_no_rank(self) -> list[Tensor]:
        parameters = [p for bucket in self.buckets for p in bucket.parameters]
        flags = torch.tensor([p in self._used for p in parameters], dtype=torch.int32)
        flags = flags.to(parameters[0].device)
        dist.all_reduce(flags, group=self.group)
        return [p for p, ranks in zip(parameters, flags.tolist(), strict=True) if not ranks]


def parameters_in_graph(output: Any) -> set[Tensor]:
    """The parameters whose gradients a backward pass from the tensors in ``output`` will reach."""
    nodes = [t.grad_fn for t in tensors_in(output) if t.grad_fn is not None]
    seen, found = set(nodes), set()
    while nodes:
        node = nodes.pop()
        if hasattr(node, "variable"):  # AccumulateGrad, the node of a leaf
            found.add(node.variable)
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                nodes.append(parent)
    return found
