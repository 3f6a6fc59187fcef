"""What ``parallelize`` refuses before it changes anything: each plan that does not fit, in one sentence."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.parallelize.shape import model_shape
from simulator.inputs.plan import Plan

AXES = ("pp", "dp", "tp")


def check_fits(model: nn.Module, plan: Plan, mesh: DeviceMesh) -> None:
    """Raise a ValueError if the plan, the mesh, the running ranks and the model do not fit together."""
    check_applied(plan)
    sizes = {axis: getattr(plan, axis) for axis in AXES}
    given = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=False))
    if list(given.items()) != list(sizes.items()):
        raise ValueError(f"this plan needs the mesh {sizes}, as mesh_axes(plan) gives it, not {given}")
    if dist.get_world_size() != plan.ranks:
        raise ValueError(f"this plan is for {plan.ranks} ranks, and {dist.get_world_size()} are running")
    shape = model_shape(model, sequence=plan.tp)  # the length of a sequence is not known before forward
    if shape is not None:
        plan.check(shape)


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
