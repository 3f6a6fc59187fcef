"""What ``parallelize`` looks at before it changes anything; ``refusals`` lists the plans that are not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.context_parallel.apply import check_context
from course_lib.expert_parallel.apply import check_experts
from course_lib.models.experts import sparse_layers
from course_lib.parallelize.refusals import refuse
from course_lib.parallelize.shape import model_shape
from course_lib.pipeline.microbatches import IGNORED, LossFunction, checked_loss
from course_lib.tensor_parallel.galaxy_layers import stacks_of
from simulator.inputs.galaxy import deal_shares, placements_of
from simulator.inputs.plan import Plan

AXES = ("pp", "dp", "cp", "tp")


def mesh_axes(plan: Plan) -> dict[str, int]:
    """The mesh that a plan needs, in Megatron-LM's rank order: the last axis varies fastest. Without context
    parallelism there is no axis cp. The axis ep is no dimension of its own: it lies within dp and cp.

    >>> mesh_axes(Plan(dp=2, tp=2, zero=1, precision="fp32"))
    {'pp': 1, 'dp': 2, 'tp': 2}
    >>> launch(train_on_ranks, mesh=mesh_axes(plan))                                 # doctest: +SKIP
    """
    return {axis: getattr(plan, axis) for axis in AXES if axis != "cp" or plan.cp > 1}


def check_fits(
    model: nn.Module,
    plan: Plan,
    mesh: DeviceMesh,
    placement: Mapping[str, Any] | None = None,
    compression: Mapping[str, Any] | None = None,
) -> None:
    """Raise a ValueError if the plan, the mesh, the running ranks and the model do not fit together."""
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("there is nothing to train: no parameter of the model requires a gradient")
    refuse(plan, placement, compression, model)
    if placement is not None:
        check_placement(model, plan, placement)
    if plan.cp > 1:
        check_context(model, plan.context, by_heads=plan.head_ranks == plan.cp)
    for layer in sparse_layers(model) if plan.cp * plan.tp > 1 else ():
        if layer.alpha or layer.capacity_factor is not None:
            what, axis = "balance loss" if layer.alpha else "capacity factor", "cp" if plan.cp > 1 else "tp"
            ranks = getattr(plan, axis)
            raise ValueError(f"{axis} must be 1 with a {what}, not {ranks}: it is that of whole sequences")
    if plan.ep > 1:
        check_experts(model, plan.ep, beside="experts" in plan.overlap)
    sizes = mesh_axes(plan)
    given = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=False))
    if list(given.items()) != list(sizes.items()):
        raise ValueError(f"this plan needs the mesh {sizes}, as mesh_axes(plan) gives it, not {given}")
    if dist.get_world_size() != plan.ranks:
        raise ValueError(f"this plan is for {plan.ranks} ranks, and {dist.get_world_size()} are running")
    # The length of a sequence is not known before forward.
    shape = model_shape(model, sequence=plan.tp * plan.cp)
    if shape is not None:
        plan_to_check(plan, placement).check(shape)


def plan_to_check(plan: Plan, placement: Mapping[str, Any] | None) -> Plan:
    """Without the axis tp where a placement deals heads and columns: they need not divide evenly."""
    return plan if placement is None else replace(plan, tp=1)


def check_placement(model: nn.Module, plan: Plan, placement: Mapping[str, Any]) -> None:
    """Raise a ValueError if the blocks of the model's layers cannot be placed like this on the axis tp."""
    shares = {key: share for key, share in placement.items() if key != "placement"}
    placements_of(placement["placement"])
    for stack in stacks_of(model):
        deal_shares(plan.tp, stack.heads, stack.columns, shares, group=stack.group)


def check_loss(loss_fn: LossFunction | None) -> None:
    """Raise a ValueError if a loss says that it is no sum over the targets that are not -100."""
    if loss_fn is not None:
        checked_loss(loss_fn)
        if (ignored := getattr(loss_fn, "ignore_index", IGNORED)) != IGNORED:
            raise ValueError(
                f"the loss's ignore_index must be {IGNORED}, not {ignored}: targets of {ignored} would be counted"
            )
