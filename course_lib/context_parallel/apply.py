"""Context parallelism applied to a plain model from outside: each rank has some tokens of every text, in all layers.

>>> cut = apply_context_parallel(model, mesh["cp"])                                  # doctest: +SKIP
>>> tokens, targets = cut(tokens, targets)  # of whole texts, the same on all ranks  # doctest: +SKIP
>>> loss_fn(model(tokens), targets).backward()                                       # doctest: +SKIP

Whatever works on each token by itself needs no change. Attention gets the keys of the other ranks, positions are those
that a rank's tokens have in the text, and gradients are added up over the ranks, as under data parallelism.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.context_parallel.all_to_all import HeadsCore
from course_lib.context_parallel.order import Cutter, Order
from course_lib.context_parallel.ring import RingCore
from course_lib.models.anatomy import Anatomy, find_anatomies
from course_lib.models.names import matching
from course_lib.models.positions import RotaryPositions
from simulator.inputs.plan import CONTEXT


def apply_context_parallel(
    model: nn.Module, mesh: DeviceMesh, context: str = "ring", *, zigzag: bool = True
) -> Cutter:
    """Change ``model`` in place; returns what cuts a batch for this rank.

    Apply it after tensor parallelism, and before recomputation, pipelines and data parallelism. Names of modules and
    parameters stay as they are.

    Args:
        mesh: one axis; or two, where the ranks along the second have one part of the text and deal out its heads.
        context: how attention gets what it lacks: ``"ring"``, ``"all-to-all"`` (of one axis) or ``"all-gather"``.
            With two axes, along the first.
        zigzag: each part has an early and a late piece of a causal text.

    Raises:
        ValueError: see ``check_context``; the model is as it was. From the cutter: p does not divide a text.
    """
    p = mesh.size()
    u = mesh.size(1) if mesh.ndim == 2 else p if context == "all-to-all" else 1
    check_context(model, context, by_heads=u == p)
    [(prefix, inner, anatomy)] = find_anatomies(model, has_core)
    rank = mesh.mesh.flatten().tolist().index(dist.get_rank())
    order = Order(p // u, anatomy.causal, zigzag and anatomy.causal and u < p, u)
    for name, core in of_role(prefix, inner, anatomy, "core"):
        new = RingCore(order, mesh.get_group(0), gather=context == "all-gather") if u < p else core
        if u > 1:
            new = HeadsCore(new, order, mesh.get_group(mesh.ndim - 1))
        model.set_submodule(name, new.train(core.training))

    def own_row(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The positions 0, 1, 2, … of this rank's tokens are others in the text."""
        ids, *others = inputs
        return order.positions(ids.shape[-1], rank, ids.device)[ids], *others

    def own_turn(module: nn.Module, heads: tuple[Tensor, ...], named: dict[str, Any]) -> tuple[Any, dict]:
        positions = order.positions(heads[0].shape[-2], rank, heads[0].device)
        return heads, named | {"positions": positions}

    for _, embedding in of_role(prefix, inner, anatomy, "positions"):
        embedding.register_forward_pre_hook(own_row, prepend=True)  # before tensor parallelism takes its part
    for module in model.modules():
        if isinstance(module, RotaryPositions):
            module.register_forward_pre_hook(own_turn, with_kwargs=True)
    return Cutter(order, rank, [*signature(model.forward).parameters])


def with_context_in_dp(mesh: DeviceMesh) -> DeviceMesh:
    """For all that is not attention, ranks that have other tokens of a text are ranks that have other texts."""
    pp, dp, cp, tp = mesh.shape
    return DeviceMesh(mesh.device_type, mesh.mesh.view(pp, dp * cp, tp), mesh_dim_names=("pp", "dp", "tp"))


def check_context(model: nn.Module, context: str, *, by_heads: bool) -> None:
    """Raise a ValueError if attention of this model cannot be spread like this."""
    ways = [way for way in CONTEXT if by_heads or way != "all-to-all"]  # of two axes, one deals out the heads
    if context not in ways:
        raise ValueError(f"context must be one of {', '.join(ways)}, not {context}")
    found = find_anatomies(model, has_core)
    if len(found) != 1:
        raise ValueError(
            f"context parallelism needs one text model with a core of attention, and {type(model).__name__} holds "
            f"{len(found)}"
        )
    [(prefix, inner, anatomy)] = found
    dropout = max(getattr(core, "dropout", 0.0) for _, core in of_role(prefix, inner, anatomy, "core"))
    if dropout and not by_heads:
        raise ValueError(
            f"dropout in attention must be 0 with the context {context}, not {dropout}: no rank has a row's weights"
        )


def has_core(anatomy: Anatomy) -> bool:
    return bool(anatomy.names("core"))


def of_role(prefix: str, inner: nn.Module, anatomy: Anatomy, role: str) -> list[tuple[str, nn.Module]]:
    """The modules with this role: their names in the whole model."""
    dot = f"{prefix}." if prefix else ""
    names = [name for name, _ in inner.named_modules()]
    called = [name for pattern in anatomy.names(role) for name in matching(pattern, names)]
    return [(dot + name, inner.get_submodule(name)) for name in called]
