"""What ``parallelize`` refuses before it changes anything: each plan that does not fit, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.finetuning.prefix import Prefix
from course_lib.finetuning.prompt import SoftPrompt
from course_lib.finetuning.side import SideTuning
from course_lib.finetuning.side_decoders import Blend
from course_lib.parallelize.shape import model_shape
from course_lib.pipeline.microbatches import IGNORED, LossFunction, checked_loss
from course_lib.tensor_parallel.galaxy_layers import stacks_of
from simulator.inputs.galaxy import deal_shares, placements_of
from simulator.inputs.plan import Plan

AXES = ("pp", "dp", "tp")


def check_fits(
    model: nn.Module, plan: Plan, mesh: DeviceMesh, placement: Mapping[str, Any] | None = None
) -> None:
    """Raise a ValueError if the plan, the mesh, the running ranks and the model do not fit together."""
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("there is nothing to train: no parameter of the model requires a gradient")
    check_applied(plan)
    check_side(model, plan)
    check_virtual_tokens(model, plan, placement)
    if placement is not None:
        check_placement(model, plan, placement)
    sizes = {axis: getattr(plan, axis) for axis in AXES}
    given = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=False))
    if list(given.items()) != list(sizes.items()):
        raise ValueError(f"this plan needs the mesh {sizes}, as mesh_axes(plan) gives it, not {given}")
    if dist.get_world_size() != plan.ranks:
        raise ValueError(f"this plan is for {plan.ranks} ranks, and {dist.get_world_size()} are running")
    shape = model_shape(model, sequence=plan.tp)  # the length of a sequence is not known before forward
    if shape is not None:
        plan_to_check(plan, placement).check(shape)


def check_side(model: nn.Module, plan: Plan) -> None:
    """Raise a ValueError if the model is tuned by a network beside it, and the plan cuts what that network needs."""
    if not any(isinstance(module, SideTuning | Blend) for module in model.modules()):
        return
    if plan.pp > 1:
        raise ValueError(
            "side tuning has no stages: its network runs beside all layers, from the embeddings to the end"
        )
    if plan.sequence_parallel:
        raise ValueError("sequence_parallel must be no with side tuning: its network reads whole sequences")


def check_virtual_tokens(model: nn.Module, plan: Plan, placement: Mapping[str, Any] | None) -> None:
    """Raise a ValueError if trained vectors stand in front of the text, and the plan cuts what they are put into."""
    prefix = any(isinstance(module, Prefix) for module in model.modules())
    if not prefix and not any(isinstance(module, SoftPrompt) for module in model.modules()):
        return
    if plan.pp > 1:
        raise ValueError(
            f"pp must be 1 with virtual tokens, not {plan.pp}: they enter and leave the whole model"
        )
    if prefix and plan.tp > 1:
        raise ValueError(
            f"tp must be 1 with a prefix, not {plan.tp}: it holds the keys and values of all heads"
        )
    if plan.tp > 1 and placement is None:
        raise ValueError(
            f"tp must be 1 with a prompt, or there must be a placement, not {plan.tp}: the embedding would be cut"
        )


def plan_to_check(plan: Plan, placement: Mapping[str, Any] | None) -> Plan:
    """Without the axis tp where a placement deals heads and columns: they need not divide evenly."""
    return plan if placement is None else replace(plan, tp=1)


def check_placement(model: nn.Module, plan: Plan, placement: Mapping[str, Any]) -> None:
    """Raise a ValueError if the blocks of the model's layers cannot be placed like this on the axis tp."""
    if plan.pp > 1:
        raise ValueError(
            f"pp must be 1 with a placement, not {plan.pp}: a stage would not know where its blocks are"
        )
    if plan.sequence_parallel:
        raise ValueError(
            "sequence_parallel must be no with a placement, which says itself what is cut by the sequence"
        )
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


def check_applied(plan: Plan) -> None:
    """Raise a ValueError if the plan asks for what ``parallelize`` does not do, and the simulator only prices."""
    for axis in ("cp", "ep"):
        if (ranks := getattr(plan, axis)) > 1:
            raise ValueError(f"{axis} must be 1, not {ranks}: that is priced, but not run yet")
    if plan.zero in (2, 3) and plan.pp > 1:
        raise ValueError(
            f"zero must be 0 or 1 with pp {plan.pp}, not {plan.zero}: gradients are kept whole until a pipeline's "
            "last microbatch, and parameters would be gathered for each of them"
        )
    if plan.shard < plan.dp and plan.zero in (1, 2):
        raise ValueError(
            f"shard must be the {plan.dp} data-parallel ranks with zero {plan.zero}, not {plan.shard}: "
            "hybrid sharding is run with zero 3"
        )
    if plan.offload == "optimizer":
        raise ValueError("offload must be none, or parameters with zero 3, not optimizer")
    if plan.precision == "fp8":
        raise ValueError("precision must be fp32, bf16 or mixed, not fp8: that is priced, but not run yet")
    if plan.precision == "bf16" and plan.gradients == "fp32":
        raise ValueError(
            "gradients must be same with precision bf16, not fp32: PyTorch keeps them as the parameters"
        )
    if others := [traffic for traffic in plan.overlap if traffic != "gradients"]:
        raise ValueError(
            f"overlap must be none or gradients, not {', '.join(others)}: that is priced, but not run yet"
        )
