"""What the checks of chapter 10 run on the ranks: an answer, and what it kept and sent. Inputs come from the check."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.grading.alive import Alive
from course_lib.grading.checks.sequence_parallel_layer import Layer
from course_lib.observe.ledgers.traffic import record_traffic

ON_CPU: dict[str, Any] = {"timeout": 60.0, "backend": "gloo"}  # a run takes two seconds; this ends what hangs
PATIENCE = 1.0  # seconds in which gloo's threads let go of what they sent


def normal(seed: int, *shape: int) -> Tensor:
    """Normally distributed, in double precision."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- 10.1: g and g-bar --------------------------------------------------------------------------------------


class Dense(TorchDispatchMode):
    """Refuses what Gloo takes and NCCL does not: inputs whose elements do not lie one behind the other."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = {"c10d::_allgather_base_": "all_gather", "c10d::_reduce_scatter_base_": "reduce_scatter"}.get(
            func._schema.name
        )
        if name and not args[1].is_contiguous():
            raise ValueError(f"{name} got an input whose elements do not lie one behind the other")
        return func(*args, **(kwargs or {}))


class Crossing(NamedTuple):
    """One call of ``gather_tokens`` or ``scatter_tokens``.

    Args:
        gathers: which of the two.
        inputs: that of each rank of a group; the group has as many neighbouring ranks.
        upstream: for each of them the gradient of its result.
        strided: the elements of the input, and of the gradient, do not lie one behind the other.
    """

    gathers: bool
    inputs: Sequence[Tensor]
    upstream: Sequence[Tensor]
    strided: bool = False


def groups_of(sizes: Iterable[int]) -> dict[int, dist.ProcessGroup]:
    """This rank's group for each size, all of neighbouring ranks."""
    rank, world, found = dist.get_rank(), dist.get_world_size(), {}
    for size in sorted(set(sizes)):
        groups = [dist.new_group(list(range(first, first + size))) for first in range(0, world, size)]
        found[size] = groups[rank // size]
    return found


def crossed(
    gather: Callable[..., Tensor], scatter: Callable[..., Tensor], cases: Sequence[Crossing]
) -> list[dict[str, Any]]:
    """What each call gave on this rank."""
    groups = groups_of(len(case.inputs) for case in cases)
    found = []
    for case in cases:
        group = groups[len(case.inputs)]
        me = group.rank()
        before = case.inputs[me]
        x, upstream = (_strided(t) if case.strided else t.clone() for t in (before, case.upstream[me]))
        x.requires_grad_()
        kept: dict[int, int] = {}

        def keep(tensor: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with record_traffic() as log, Dense():
            with saved_tensors_hooks(keep, lambda t: t):
                out = (gather if case.gathers else scatter)(x, group)
            result = out.detach().clone() if isinstance(out, Tensor) else out
            if isinstance(out, Tensor) and out.requires_grad:
                for tensor in _on_contexts(out):
                    keep(tensor)
                if out.shape == upstream.shape:
                    out.backward(upstream)
        found.append(
            {
                "out": result,
                "gradient": None if x.grad is None else x.grad.clone(),
                "changed": not torch.equal(x.detach(), before),
                "sent": round(log.traffic.sent, 3),
                "kept": sum(kept.values()),
            }
        )
    return found


def _strided(t: Tensor) -> Tensor:
    return t.transpose(0, 2).contiguous().transpose(0, 2)


def _on_contexts(out: Tensor) -> list[Tensor]:
    """Tensors that autograd functions on the way to ``out`` keep as attributes of ``ctx``, unseen by hooks."""
    nodes, kept = [out.grad_fn] if out.grad_fn else [], []  # a leaf has no function before it
    for node in nodes:
        kept += tree_leaves(list(getattr(node, "__dict__", {}).values()))
        nodes += [before for before, _ in node.next_functions if before is not None and before not in nodes]
    return [value for value in kept if isinstance(value, Tensor)]


# ---- 10.2: an MLP that keeps its shard ----------------------------------------------------------------------


class Region(NamedTuple):
    """One call of ``mlp``: the whole weights and input, in double precision.

    Args:
        x: (batch, seq, hidden).
        up, up_bias, down: (wide, hidden), (wide,) and (hidden, wide).
        upstream: the gradient of the result, as large as ``x``.
        ranks: of the group.
        frozen: the weight of ``up`` takes no gradient.
    """

    x: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    upstream: Tensor
    ranks: int
    frozen: bool = False


def through_mlp(answer: Callable[..., Tensor], cases: Sequence[Region]) -> list[dict[str, Any]]:
    groups = groups_of(case.ranks for case in cases)
    found, patience = [], PATIENCE
    for case in cases:
        found.append(_through_mlp(answer, case, groups[case.ranks], patience))
        if found[-1]["kept"] > mlp_keeps(case):  # it keeps too much, so the other cases need no waiting
            patience = 0
    return found


def _through_mlp(
    answer: Callable[..., Tensor], case: Region, group: dist.ProcessGroup, patience: float
) -> dict[str, Any]:
    p, me = group.size(), group.rank()
    up, down = _linear(case.up.chunk(p)[me], case.up_bias.chunk(p)[me]), _linear(case.down.chunk(p, 1)[me])
    up.weight.requires_grad_(not case.frozen)
    x = case.x.chunk(p, 1)[me].clone().requires_grad_()
    limit = mlp_keeps(case)
    gc.collect()
    with record_traffic() as log:
        with Alive(x, *up.parameters(), *down.parameters()) as alive:
            out = answer(x, up, down, group)
            alive.known[out.untyped_storage()] = True
            alive.made.pop(out.untyped_storage(), None)
        waited = time.monotonic() + patience
        while alive.now > limit and time.monotonic() < waited:
            gc.collect()
            time.sleep(0.05)
        kept, result = alive.now, out.detach().clone()
        if result.shape == x.shape:
            out.backward(case.upstream.chunk(p, 1)[me])
    gradients = {
        "x": x.grad,
        "up.weight": up.weight.grad,
        "up.bias": up.bias.grad,
        "down.weight": down.weight.grad,
    }
    return {"out": result, "gradients": gradients, "kept": kept, "sent": round(log.traffic.sent, 3)}


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear


def mlp_keeps(case: Region) -> int:
    """Bytes that the region needs in backward besides its input: what GELU and the second layer get."""
    tokens = case.x.shape[0] * case.x.shape[1]
    return 2 * tokens * case.up.shape[0] // case.ranks * case.x.element_size()


# ---- 10.3: a mended layer -----------------------------------------------------------------------------------


class Passing(NamedTuple):
    """Several calls of ``mended_layer``, and one backward through all of them.

    Args:
        layer: the whole weights.
        xs, upstream: for each call the whole input, and the gradient of its result.
        drop: as the task says.
        ranks: of the group.
    """

    layer: Layer
    xs: Sequence[Tensor]
    upstream: Sequence[Tensor]
    drop: float
    ranks: int


def passed(answer: Callable[..., Tensor], cases: Sequence[Passing]) -> list[dict[str, Any]]:
    groups = groups_of(case.ranks for case in cases)
    return [_passed(answer, case, groups[case.ranks]) for case in cases]


def _passed(answer: Callable[..., Tensor], case: Passing, group: dist.ProcessGroup) -> dict[str, Any]:
    p, me = group.size(), group.rank()
    own = case.layer.part_of(me, p)
    torch.manual_seed(5)
    outs, inputs, again = [], [], []
    with record_traffic() as log:
        for x in case.xs:
            inputs.append(x.chunk(p, 1)[me].clone().requires_grad_())
            outs.append(answer(inputs[-1], own, group, case.drop))
        common = torch.get_rng_state()
        torch.autograd.backward(outs, [u.chunk(p, 1)[me] for u in case.upstream])
    calls, sent = log.traffic.calls, log.traffic.sent
    torch.manual_seed(5)
    for x in case.xs:  # what recomputation does
        again.append(answer(x.chunk(p, 1)[me], own, group, case.drop).detach().clone())
    gradients = {name: p.grad for name, p in own._asdict().items()}
    return {
        "outs": [out.detach().clone() for out in outs],
        "again": again,
        "dropped": [(out.detach() == x.detach()) for out, x in zip(outs, inputs, strict=True)],
        "state": common,
        "gradients": gradients | {"x": torch.cat([x.grad for x in inputs])},
        "calls": calls,
        "sent": sent,
    }
