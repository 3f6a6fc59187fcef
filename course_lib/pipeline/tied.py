"""Parameters that stand in several stages, such as an embedding that reads tokens and writes them.

Each of the ranks holds a copy. In every step each copy gets a part of the gradient, from its own stage. The parts are
added up on all of these ranks, so all of them update their copies alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.pipeline.messages import on_wire, start
from course_lib.pipeline.stage_modules import inner_stage
from course_lib.runtime import trace


@torch.no_grad()
def add_tied_gradients(
    modules: Mapping[int, nn.Module], mesh: DeviceMesh, rank_of: Callable[[int], int]
) -> None:
    """Add up the gradients of each tied parameter over all ranks that hold it.

    Args:
        modules: this rank's stages.
        mesh: the ranks of the pipeline.
        rank_of: the rank that holds a stage.
    """
    me, group = mesh.get_local_rank(), mesh.get_group()
    done = set()
    for index in sorted(modules):
        stage = inner_stage(modules[index])
        for name, stages in stage.tied.items() if stage is not None else ():
            parameter = stage.get_parameter(name)
            others = sorted({rank_of(stage) for stage in stages} - {me})
            # Where a rank holds both stages, they share one parameter, and autograd has added up its gradient.
            if not others or not parameter.requires_grad or parameter in done:
                continue
            done.add(parameter)
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            mine = on_wire(parameter.grad, group)
            parts = {rank: mine if rank == me else torch.empty_like(mine) for rank in sorted([me, *others])}
            operations = [dist.P2POp(dist.isend, mine, group=group, group_peer=rank) for rank in others]
            operations += [
                dist.P2POp(dist.irecv, parts[rank], group=group, group_peer=rank) for rank in others
            ]
            with trace.span("communication", f"tied gradient {name}"):
                for work in start(operations):
                    work.wait()
            parameter.grad.copy_(sum(parts.values()))  # in the order of the ranks: the same sum everywhere
