"""What the check of 07.1 runs on the ranks: an answer, watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.data_parallel.flat import storage_bytes
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.training.nested_tensors import tensors_in


def parameters_of(dims: tuple[int, int, int], dtype: torch.dtype, seed: int) -> list[nn.Parameter]:
    """A matrix (r, c), a vector (r,), a scalar and a matrix (o, r), from ``dims`` r, c, o."""
    r, c, o = dims
    generator = torch.Generator().manual_seed(seed)
    shapes = [(r, c), (r,), (), (o, r)]
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def output(parameters: list[Tensor]) -> Tensor:
    """Something that needs every parameter, and whose backward needs the matrices again."""
    first, bias, scale, second = parameters
    x = torch.linspace(-1, 1, first.shape[1], dtype=first.dtype)
    return (second @ torch.tanh(first @ x + bias) * scale).square().sum()


def comes_and_goes(
    answer: Callable, dims: tuple[int, int, int], dtype: torch.dtype, seed: int, part: int
) -> dict[str, Any]:
    """A unit of the answer through three unshards and a backward, unless a rank has no shard of that length."""
    parameters, originals = (parameters_of(dims, dtype, seed) for _ in range(2))
    called: list[int] = []
    for p in parameters:
        p.register_post_accumulate_grad_hook(lambda _: called.append(1))
    unit = answer(parameters)
    shard = getattr(unit, "shard", None)
    is_tensor = isinstance(shard, Tensor)
    seen: dict[str, Any] = {"shard": tuple(shard.shape) if is_tensor else shard}
    seen["memory"] = shard.untyped_storage().nbytes() // shard.element_size() if is_tensor else 0  # elements
    sound = torch.tensor(int(seen["shard"] == (part,) and seen["memory"] >= part))
    dist.all_reduce(sound, dist.ReduceOp.MIN)
    if not sound:  # going on would hang or crash
        return seen
    seen["dtypes"] = {t.dtype for t in (shard, *parameters)}
    seen["shard values"] = shard.detach().clone()

    def held() -> int:
        return storage_bytes([*tensors_in(vars(unit)), *parameters])

    seen["held before"] = held()
    with record_traffic() as log:
        unit.unshard()
    seen["collectives"] = log.traffic.calls
    seen["whole"] = [p.detach().clone() for p in parameters]
    shapes_kept = all(a.shape == b.shape for a, b in zip(parameters, originals, strict=True))
    loss = output(parameters) if shapes_kept else None
    buffers = [p.untyped_storage() for p in parameters]  # autograd holds these until backward
    unit.reshard()
    seen["held between"] = held()
    seen["in the graph"] = sum({s.data_ptr(): s.nbytes() for s in buffers}.values())
    unit.unshard()
    if loss is not None:
        loss.backward()
    seen["gradients"] = [p.grad for p in parameters]
    seen["hooks"] = len(called)
    with torch.no_grad():  # what an optimizer does, first with the parameters there and then without them
        unit.shard += 1
        unit.reshard()
        unit.shard += 2
    unit.unshard()
    seen["updated"] = [p.detach().clone() for p in parameters]
    return seen
