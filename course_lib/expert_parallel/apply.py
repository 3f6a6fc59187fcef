"""Expert parallelism applied to a plain model from outside: each rank has some of every layer's experts.

>>> apply_expert_parallel(model, mesh["ep"])                                         # doctest: +SKIP

The ranks of ``ep`` have different samples: they are some of the data-parallel ranks. Copies of tokens travel to the
ranks of their experts and back by all-to-all (GShard, arXiv:2006.16668), as many as there are: buffers are not padded.
On their way there, and gradients on theirs, they can be numbers of 8 bits (DeepSeek-V3, arXiv:2412.19437, section 3.3).

A rank's experts see the tokens of all its p ranks, so their gradient is p times as large as that of parameters which
each of the p ranks has. It is divided by p on its way back. So averages over data-parallel ranks are right for all
parameters: over all ranks for the others, and over those that have the same experts for these.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from course_lib.models.experts import Experts
from course_lib.runtime import current_device, trace
from simulator.inputs.checks import one_of
from simulator.inputs.plan import DISPATCH

E4M3 = torch.float8_e4m3fn
Groups = tuple[ProcessGroup, ProcessGroup]  # of the same ranks: of forward, and of backward


def apply_expert_parallel(
    model: nn.Module, mesh: DeviceMesh, dispatch: str = "same", *, beside: bool = False
) -> None:
    """Change ``model`` in place. Names stay; a parameter of experts becomes the rows that are this rank's.

    Apply it before recomputation, pipelines and data parallelism.

    Args:
        mesh: one axis.
        dispatch: how copies travel to their experts: as the layers compute, or in ``"fp8"``.
        beside: backwards may run beside forwards of other microbatches, so they have a process group of their own.

    Raises:
        ValueError: see ``check_experts``; the model is as it was.
    """
    check_experts(model, mesh.size(), beside)
    one_of("dispatch", dispatch, DISPATCH)
    group = mesh.get_group()
    back = group
    if beside:
        back = dist.new_group(dist.get_process_group_ranks(group), use_local_synchronization=True)
    for name, module in [*model.named_modules()]:
        if isinstance(module, Experts):
            model.set_submodule(name, DealtExperts(module, (group, back), dispatch == "fp8"))


def check_experts(model: nn.Module, ranks: int, beside: bool = False) -> None:
    """Raise a ValueError if the experts of this model cannot be dealt to so many ranks."""
    if beside and current_device().type != "cpu":
        raise ValueError("overlap of experts is run on CPUs alone: leave it out on a GPU")
    numbers = {len(module.down_proj) for module in model.modules() if isinstance(module, Experts)}
    if not numbers:
        raise ValueError(f"ep must be 1, not {ranks}: {type(model).__name__} has no experts")
    for number in numbers:
        if number % ranks:
            raise ValueError(f"ep must divide the {number} experts, not {ranks}")


class DealtExperts(Experts):
    """Takes the place of all experts of a layer: called as they are, it sends each copy to the rank of its expert.

    Attributes:
        first, experts: the number of this rank's first expert, and how many there are on all ranks.
        routed: how many copies each rank sent to each expert in the last forward: ``(p, experts)``.
    """

    def __init__(self, whole: Experts, groups: Groups, eight_bits: bool = False) -> None:
        nn.Module.__init__(self)
        self.groups, self.eight_bits, self.experts = groups, eight_bits, len(whole.down_proj)
        group = self.group = groups[0]
        number = self.experts // group.size()
        self.first = group.rank() * number
        self.linears = whole.linears and whole.linears[self.first :][:number]
        for name, p in whole.named_parameters():
            own = p.detach()[self.first :][:number].clone()
            self.register_parameter(name, nn.Parameter(own, p.requires_grad))

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        routed = sizes.new_empty(self.group.size(), self.experts)
        with trace.waiting(), trace.span("communication", "counts"):
            dist.all_gather([*routed], sizes, group=self.groups[in_backward()])
        self.routed = routed
        way = Way(self.routed, self.groups, self.eight_bits)
        return Travel.apply(super().forward(Travel.apply(x, way, False), way.sizes), way, True)


class Way:
    """Of copies to the experts of all ranks, and home.

    Args:
        routed: ``(p, experts)``, see ``DealtExperts``.
        eight_bits: on the way out.

    Attributes:
        sizes: how many copies each of this rank's experts gets, ``(experts / p,)``.
    """

    def __init__(self, routed: Tensor, groups: Groups, eight_bits: bool = False) -> None:
        rank, self.p = groups[0].rank(), groups[0].size()
        self.groups, self.eight_bits = groups, eight_bits
        by_rank = routed.unflatten(1, (self.p, -1))  # (from, to, experts / p)
        self.came = by_rank[:, rank].tolist()
        self.back = [sum(row) for row in self.came]
        self.there = by_rank[rank].sum(1).tolist()
        self.sizes = by_rank[:, rank].sum(0)

    def out(self, x: Tensor) -> Tensor:
        """Rows that lie by expert of all ranks -> rows of all ranks, by expert of this one."""
        came = self._exchange(packed(x) if self.eight_bits else x, self.there, self.back)
        return regroup(unpacked(came, x.shape[1], x.dtype) if self.eight_bits else came, self.came)

    def home(self, y: Tensor) -> Tensor:
        by_expert = [list(column) for column in zip(*self.came, strict=True)]
        return self._exchange(regroup(y, by_expert), self.back, self.there)

    def _exchange(self, x: Tensor, there: list[int], back: list[int]) -> Tensor:
        came = x.new_empty(sum(back), *x.shape[1:])
        with trace.waiting(), trace.span("communication", "all-to-all"):
            dist.all_to_all_single(came, x.contiguous(), back, there, group=self.groups[in_backward()])
        return came


def in_backward() -> bool:
    """Also of what is computed again there."""
    return torch._C._current_graph_task_id() != -1


class Travel(torch.autograd.Function):
    """``way.out``, or ``way.home``; gradients take the opposite way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Way, home: bool) -> Tensor:
        ctx.way, ctx.is_home = way, home
        return way.home(x) if home else way.out(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # The trick: what lies between both ways, the experts, gets a p-th of the gradient, and all else the whole.
        if ctx.is_home:
            return ctx.way.out(gradient).div_(ctx.way.p), None, None
        return ctx.way.home(gradient).mul_(ctx.way.p), None, None


def packed(x: Tensor) -> Tensor:
    """Rows of h numbers -> of h + 4 ceil(h / 128) bytes: e4m3, and behind them a scale for every 128 of them."""
    tiles = F.pad(x.float(), (0, -x.shape[1] % 128)).unflatten(1, (-1, 128))
    most = torch.finfo(E4M3).max
    scales = (tiles.abs().amax(2, keepdim=True) / most).clamp(min=torch.finfo(torch.float32).tiny)
    numbers = (tiles / scales).clamp(-most, most).flatten(1)[:, : x.shape[1]].to(E4M3)
    return torch.cat([numbers.view(torch.uint8), scales.flatten(1).view(torch.uint8)], 1)


def unpacked(bytes_: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    numbers, scales = bytes_[:, :size].view(E4M3).float(), bytes_[:, size:].contiguous().view(torch.float32)
    tiles = F.pad(numbers, (0, -size % 128)).unflatten(1, (-1, 128)) * scales[:, :, None]
    return tiles.flatten(1)[:, :size].to(dtype)


def regroup(x: Tensor, sizes: list[list[int]]) -> Tensor:
    """Rows that lie in ``sizes[i][j]`` at a time, by i and then by j, the other way round: by j and then by i."""
    if len(sizes) == 1 or len(sizes[0]) == 1:
        return x
    blocks, columns = x.split([n for row in sizes for n in row]), len(sizes[0])
    return torch.cat([block for j in range(columns) for block in blocks[j::columns]])


def mesh_of_experts(mesh: DeviceMesh, ep: int) -> DeviceMesh:
    """Of the data-parallel ranks, ``ep`` neighbours have all experts of a layer together. On the axis dp of this mesh
    are those that have the same ones."""
    pp, dp, tp = mesh.shape
    names = ("pp", "dp", "ep", "tp")
    return DeviceMesh(mesh.device_type, mesh.mesh.view(pp, dp // ep, ep, tp), mesh_dim_names=names)
