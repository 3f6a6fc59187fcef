"""What the checks of chapter 07 run on the ranks: an answer, watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

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


def own_gradient(rank: int, elements: int, seed: int) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed + rank))


def hybrid(mesh: DeviceMesh, answer: Callable, elements: int, seed: int) -> dict[str, Any]:
    """The answer's average on this rank, and what it sent in groups of either size."""
    shards, copies = mesh.get_group(1), mesh.get_group(0)
    gradient = own_gradient(dist.get_rank(), elements, seed)
    with record_traffic() as log:
        result = answer(gradient.clone(), shards, copies)
    sent = {size: sum(r.sent for r in log.traffic.rows if r.group_size == size) for size in range(2, 9)}
    return {"result": result, "sent": sent}


def first_shard(rank: int, elements: int, seed: int) -> Tensor:
    return 1 + torch.rand(elements, generator=torch.Generator().manual_seed(seed + 80 + rank))


def slopes(weight: float, elements: int, seed: int) -> Tensor:
    """(elements,) bfloat16: what all ranks' batches share, and ``weight`` times what cancels between the ranks."""
    signal = torch.randn(elements, generator=torch.Generator().manual_seed(seed + 90))
    noise = torch.randn(elements, generator=torch.Generator().manual_seed(seed + 91))
    return (signal + weight * noise).bfloat16()


def loss(parameters: Tensor, slope: Tensor) -> Tensor:
    return (parameters * slope.to(parameters.dtype)).sum() + parameters.square().sum() / 2


def gradient(parameters: Tensor, slope: Tensor, divisor: int) -> Tensor:
    """What backward gives in the dtype of ``parameters`` when the loss is divided by ``divisor`` before it."""
    leaf = parameters.detach().requires_grad_()
    (loss(leaf, slope) / divisor).backward()
    return leaf.grad


def mixed(
    answer: Callable, weights: tuple[float, ...], elements: int, lr: float, seed: int
) -> dict[str, Any]:
    """One step of the answer on this rank."""
    rank = dist.get_rank()
    shard, slope = first_shard(rank, elements, seed), slopes(weights[rank], len(weights) * elements, seed)
    given: list[tuple[Any, ...]] = []

    def loss_of(parameters: Tensor) -> Tensor:
        given.append((parameters.dtype, tuple(parameters.shape)))
        return loss(parameters, slope)

    with record_traffic() as log:
        answer(shard, loss_of, lr)
    return {"shard": shard, "given": given, "rows": log.traffic.rows}
