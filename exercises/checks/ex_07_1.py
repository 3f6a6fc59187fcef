"""07.1: a unit that is unsharded and resharded: three unshards and a backward, with an optimizer's change between."""

import torch
import torch.distributed as dist
from course_checks.on_ranks import on_ranks
from torch import Tensor, nn

from course_lib.data_parallel.flat import storage_bytes
from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.nested_tensors import tensors_in

LENGTH = "the number of elements divided by the number of ranks p and rounded up"
BETWEEN = "Between uses the unit and its parameters hold the memory of `self.shard` and no other"
MOMENT = "with the values that `self.shard` has on each rank at that moment"
SAME = "The buffer is the same tensor all the time"
ranked = {"each": "rank"}
FACTS = {
    "shape": Fact("the shape of `shard`", LENGTH, **ranked),
    "memory": Fact("the room of the memory of `shard`", "`self.shard` has a memory of its own", **ranked),
    "dtypes": Fact("the dtype of shard and values", "of one dtype (any floating-point dtype)", **ranked),
    "shard": Fact("`shard`", "Rank r keeps the r-th of p equal shards", 0.0, **ranked),
    "held": Fact("the bytes that are held {}, beside those of `shard`,", BETWEEN, **ranked),
    "gathered": Fact("`unshard`", "`unshard()` gathers the parameters.", **ranked),
    "whole": Fact("{}", "Afterwards every parameter has its shape and its values", 0.0, **ranked),
    "graph": Fact("what autograd keeps, in bytes,", SAME, **ranked),
    "lost": Fact("what forward has kept", SAME, **ranked),
    "gradients": Fact("{}", "backward finds the values that forward has used", 1e-5, **ranked),
    "hooks": Fact("calls of hooks", "The parameters stay the same objects, with their hooks.", **ranked),
    "updated": Fact("{}", MOMENT, 1e-6, **ranked),
    "collectives": Fact("collectives of an unshard", most=1),
}

Case = record("name ranks sizes", dtype=torch.float32)
CASES = [
    Case("2 ranks, 41 numbers", 2, (5, 4, 3)),
    Case("3 ranks, 41 numbers", 3, (5, 4, 3)),
    Case("4 ranks, 36 numbers", 4, (5, 4, 2)),
    Case("3 ranks, 4 numbers", 3, (1, 1, 1)),
    Case("2 ranks, 41 numbers in float64", 2, (5, 4, 3), torch.float64),
]


def output(first: Tensor, bias: Tensor, scale: Tensor, second: Tensor) -> Tensor:
    """Something that needs every parameter, and whose backward needs the matrices again."""
    x = torch.linspace(-1, 1, first.shape[1], dtype=first.dtype)
    return (second @ torch.tanh(first @ x + bias) * scale).square().sum()


def named(tensors: list[Tensor | None], what: str = "") -> dict[str, Tensor | None]:
    return {f"{what}parameter {i}": x if x is None else x.clone() for i, x in enumerate(tensors)}


@on_ranks(FACTS, quiet=True)
def observe(answer, case: Case) -> dict:
    _, ranks, sizes, dtype, seed = case
    draw, called, (r, c, o) = torch.Generator().manual_seed(seed), [], sizes
    shapes = [(r, c), (r,), (), (o, r)]
    parameters = [nn.Parameter(torch.randn(shape, generator=draw).to(dtype)) for shape in shapes]
    part = -(-(elements := sum(p.numel() for p in parameters)) // ranks)
    for p in parameters:
        p.register_post_accumulate_grad_hook(lambda _: called.append(1))
    shard = (unit := answer(parameters)).shard
    room = shard.untyped_storage().nbytes() // shard.element_size()
    sound = torch.tensor(int(shard.shape == (part,) and room >= part))
    seen = {"shape": tuple(shard.shape), "memory": room}
    dist.all_reduce(sound, dist.ReduceOp.MIN)
    if not sound:  # going on would hang or crash
        return seen
    seen["dtypes"] = ", ".join(sorted({str(t.dtype).removeprefix("torch.") for t in (shard, *parameters)}))
    seen["shard"] = shard.detach()[: max(0, elements - dist.get_rank() * part)].clone()  # without padding
    seen["held"] = {"at first": storage_bytes([*tensors_in(vars(unit)), *parameters]) - shard.nbytes}
    with record_traffic() as log:
        unit.unshard()
    seen["gathered"] = "" if log.traffic.calls else "`unshard` sends nothing, so the new memory has no values"
    seen |= {"collectives": log.traffic.calls, "whole": named([p.data for p in parameters])}
    loss = output(*parameters) if [tuple(p.shape) for p in parameters] == shapes else None
    buffers = [p.untyped_storage() for p in parameters]  # autograd holds these until backward
    unit.reshard()
    seen["held"]["between uses"] = storage_bytes([*tensors_in(vars(unit)), *parameters]) - shard.nbytes
    seen["graph"] = sum({s.data_ptr(): s.nbytes() for s in buffers}.values())
    unit.unshard()
    if lost := any(s.nbytes() == 0 for s in buffers):
        seen["lost"] = "after the second `unshard`, the memory that forward has read is still freed"
    if loss is not None and not lost:
        loss.backward()
    seen |= {"gradients": named([p.grad for p in parameters], "the gradient of "), "hooks": len(called)}
    with torch.no_grad():  # what an optimizer does, first with the parameters there and then without them
        unit.shard += 1
        unit.reshard()
        unit.shard += 2
    unit.unshard()
    return seen | {"updated": named([p.data for p in parameters], "with 3 added to every shard, ")}
