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


def odd_parameters() -> list[nn.Parameter]:
    """41 numbers in four shapes, a scalar among them: two, three and four ranks leave a remainder."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(5, 4), (5,), (), (3, 5)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def output(parameters: list[Tensor]) -> Tensor:
    """Something that needs every parameter, and whose backward needs the matrices again."""
    first, bias, scale, second = parameters
    x = torch.linspace(-1, 1, 4)
    return (second @ torch.tanh(first @ x + bias) * scale).square().sum()


def comes_and_goes(answer: Callable, part: int) -> dict[str, Any]:
    """A unit of the answer through three unshards and a backward, unless a rank has no shard of that length."""
    parameters, originals = odd_parameters(), odd_parameters()
    unit = answer(parameters)
    shard = getattr(unit, "shard", None)
    seen: dict[str, Any] = {"shard": shard if shard is None else tuple(shard.shape)}
    seen["dangling"] = shard is not None and shard.untyped_storage().nbytes() < shard.nbytes
    sound = torch.tensor(int(seen["shard"] == (part,) and not seen["dangling"]))
    dist.all_reduce(sound, dist.ReduceOp.MIN)
    if not sound:  # going on would hang or crash
        return seen
    seen["shard values"] = shard.detach().clone()

    def held() -> int:
        return storage_bytes([*vars(unit).values(), *parameters])

    seen["held before"] = held()
    with record_traffic() as log:
        unit.unshard()
    seen["collectives"], seen["sent"] = log.traffic.calls, log.traffic.sent
    seen["whole"] = [p.detach().clone() for p in parameters]
    if any(a.shape != b.shape for a, b in zip(parameters, originals, strict=True)):
        return seen
    loss = output(parameters)
    buffers = [p.untyped_storage() for p in parameters]  # autograd holds these until backward
    unit.reshard()
    seen["held between"] = held()
    seen["in the graph"] = sum({s.data_ptr(): s.nbytes() for s in buffers}.values())
    unit.unshard()
    loss.backward()
    seen["gradients"] = [p.grad for p in parameters]
    unit.reshard()
    with torch.no_grad():
        unit.shard += 1  # what an optimizer does
    unit.unshard()
    seen["updated"] = [p.detach().clone() for p in parameters]
    return seen


def own_gradient(rank: int, elements: int) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(50 + rank))


def hybrid(mesh: DeviceMesh, answer: Callable, elements: int) -> dict[str, Any]:
    """The answer's average on this rank, and what it sent in groups of either size."""
    shards, copies = mesh.get_group(1), mesh.get_group(0)
    gradient = own_gradient(dist.get_rank(), elements)
    with record_traffic() as log:
        result = answer(gradient.clone(), shards, copies)
    sent = {size: sum(r.sent for r in log.traffic.rows if r.group_size == size) for size in range(2, 9)}
    return {"result": result, "sent": sent, "place": shards.rank(), "copy": copies.rank()}


def first_shard(rank: int, elements: int) -> Tensor:
    return 1 + torch.rand(elements, generator=torch.Generator().manual_seed(80 + rank))


def slopes(rank: int, elements: int) -> Tensor:
    """(elements,) bfloat16: what the ranks' batches disagree about is a hundred times what they share."""
    signal = torch.randn(elements, generator=torch.Generator().manual_seed(90))
    noise = torch.randn(elements, generator=torch.Generator().manual_seed(91 + rank // 2))
    return (signal + (100 if rank % 2 else -100) * noise).bfloat16()


def mixed(answer: Callable, elements: int, lr: float) -> dict[str, Any]:
    """One step of the answer on this rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shard, slope = first_shard(rank, elements), slopes(rank, ranks * elements)
    given: list[tuple[Any, ...]] = []

    def loss_of(parameters: Tensor) -> Tensor:
        given.append((parameters.dtype, tuple(parameters.shape)))
        return (parameters * slope.to(parameters.dtype)).sum() + parameters.square().sum() / 2

    with record_traffic() as log:
        answer(shard, loss_of, lr)
    return {"shard": shard, "given": given, "rows": log.traffic.rows}
