"""Parameters that stand in several stages, such as an embedding that reads tokens and writes them.

Each of the ranks holds a copy. In every step each copy gets a part of the gradient, from its own stage. The parts are
added up on all of these ranks, so all of them update their copies alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.pipeline.messages import on_wire, start
from course_lib.pipeline.stage_modules import inner_stage
from course_lib.runtime import trace


class TiedGradients:
    """The tied parameters of one rank.

    Args:
        modules: this rank's stages.
        mesh: the ranks of the pipeline.
        rank_of: the rank that holds a stage.
    """

    def __init__(
        self, modules: Mapping[int, nn.Module], mesh: DeviceMesh, rank_of: Callable[[int], int]
    ) -> None:
        self.modules, self.mesh, self.rank_of = modules, mesh, rank_of
        self.added_up: dict[
            nn.Parameter, Tensor
        ] = {}  # gradients of earlier steps, which must not be added again
        self.partial = False  # what the last step added to the gradients has not been added up

    @contextmanager
    def of_step(self, synchronise: bool = True) -> Iterator[None]:
        """Around a step. Behind it gradients are added up, with those of the steps without ``synchronise`` before."""
        shared = self.shared()
        if not self.partial or all(parameter.grad is None for parameter, _ in shared):
            self.added_up = {p: p.grad for p, _ in shared if type(p.grad) is Tensor}
            for parameter in self.added_up:
                parameter.grad = None
        yield
        self.partial = not synchronise
        if synchronise:
            for parameter, others in self.shared():
                self.exchange(parameter, others)
                if (earlier := self.added_up.pop(parameter, None)) is not None:
                    parameter.grad = parameter.grad + earlier

    def shared(self) -> list[tuple[nn.Parameter, list[int]]]:
        """Each parameter that other ranks have, too, with these ranks; on all of them in the same order."""
        found: dict[nn.Parameter, list[int]] = {}
        for stage in map(inner_stage, self.modules.values()):
            for name, stages in stage.tied.items() if stage is not None else ():
                # Where a rank holds both stages, they share one parameter, and autograd adds up its gradient.
                others = sorted({self.rank_of(index) for index in stages} - {self.mesh.get_local_rank()})
                parameter = stage.get_parameter(name)
                if others and parameter.requires_grad:
                    found[parameter] = others
        return list(found.items())

    @torch.no_grad()
    def exchange(self, parameter: nn.Parameter, others: list[int]) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        me, group = self.mesh.get_local_rank(), self.mesh.get_group()
        mine = on_wire(parameter.grad, group)
        parts = {rank: mine if rank == me else torch.empty_like(mine) for rank in sorted([me, *others])}
        operations = [
            dist.P2POp(operation, tensor, group=group, group_peer=rank)
            for rank in others
            for operation, tensor in ((dist.isend, mine), (dist.irecv, parts[rank]))
        ]
        with trace.span("communication", "tied gradient"):
            for work in start(operations):
                work.wait()
        parameter.grad.copy_(sum(parts.values()))  # in the order of the ranks: the same sum everywhere
