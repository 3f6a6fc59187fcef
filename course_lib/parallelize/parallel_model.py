"""A model that a plan has spread over ranks, and its training step: forward and backward of all microbatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from course_lib.data_parallel.broadcast import broadcast_together
from course_lib.data_parallel.sharded_gradient import ShardedGradient
from course_lib.models.experts import sparse_layers
from course_lib.one_device.activation_offload import HostMemory
from course_lib.parallelize.data_parallel import Part, Replicated
from course_lib.parallelize.forward_backward import Accumulation, PipelineRun
from course_lib.parallelize.whole_state import Whole
from course_lib.pipeline.microbatches import IGNORED
from course_lib.runtime.gradient_norm import clip_grad_norm
from simulator.inputs.plan import Plan
from simulator.ledgers.memory import MemoryBreakdown


class ParallelModel:
    """What ``parallelize`` returns: one device's training loop in which two lines have become one.

    >>> for tokens, targets in batches(…, rank=model.data_rank, ranks=model.data_ranks):   # doctest: +SKIP
    ...     optimizer.zero_grad()
    ...     loss = model.forward_backward(tokens, targets)     # loss_fn(model(tokens), targets), and loss.backward()
    ...     norm = model.clip_grad_norm(1.0)
    ...     optimizer.step()

    A pipeline runs the forward of one microbatch beside the backward of another, so the two cannot be called apart.

    Attributes:
        plan: as given to ``parallelize``.
        mesh: of pp, dp and tp; the axis cp, if there is one, is within dp.
        cut: of inputs and targets what belongs to this rank's tokens; None: all of it.
        module: what this rank holds of the model.
        data_rank, data_ranks: which slice of each batch this rank takes, of how many.
        host: with recompute ``"offload"``, the CPU's memory that the layers save in.
        targets: how many targets the last loss was the mean of, on all ranks.
    """

    def __init__(
        self,
        plan: Plan,
        mesh: DeviceMesh,
        run: Accumulation | PipelineRun,
        data: Replicated,
        whole: Whole,
        cut: Callable[..., list[Tensor]] | None = None,
    ) -> None:
        self.plan, self.mesh = plan, mesh
        self.run, self.data, self.whole = run, data, whole
        self.module: nn.Module = data.module
        self.data_rank, self.data_ranks = mesh["dp"].get_local_rank() // plan.cp, plan.dp
        self.cut = cut
        self.host: HostMemory | None = None
        self.targets = 0

    def forward_backward(self, *batch: Tensor) -> Tensor:
        """The mean loss over the targets of all ranks, and its gradient.

        Afterwards every ``.grad`` is that of the one loss on one device: each target counts alike, on whichever rank
        and in whichever microbatch it is. Gradients of several calls add up until ``optimizer.zero_grad()``.

        Args:
            batch: inputs, then targets, of this data-parallel rank; ranks that differ in tp, pp or cp alone give the
                same.
                They are cut into the plan's microbatches along the first dimension, as evenly as possible.

        Returns:
            The loss, the same on every rank; it carries no gradient.

        Raises:
            ValueError: on any rank fewer rows than microbatches, or no target that counts; every rank raises it.
        """
        *inputs, targets = self.own(*batch)
        self.targets = self._count_on_all_ranks(targets)
        self._share_balance(len(targets))
        # Data parallelism takes the mean over its ranks, so a rank's share of the loss is its sum x dp / count.
        total = self.run(inputs, targets, self.targets / self.mesh["dp"].size())
        self.data.average()
        self._mark_gradients()
        dist.all_reduce(total)  # in each copy of the model one rank has its loss, and all others have 0
        return total / self.targets

    def own(self, *batch: Tensor) -> list[Tensor]:
        """Inputs and targets as this rank works on them, on its device."""
        batch = tuple(tensor.to(self.mesh.device_type) for tensor in batch)
        return list(batch) if self.cut is None else self.cut(*batch)

    def _count_on_all_ranks(self, targets: Tensor) -> int:
        """The targets that count. What is wrong on one rank is raised on all, so that none waits for it."""
        rows, needed = len(targets), self.plan.microbatches
        count = (targets != IGNORED).sum().double()
        if rows < needed:
            count.fill_(math.nan)  # and so is the sum, on all ranks
        dist.all_reduce(count, group=self.mesh["dp"].get_group())
        if count.isnan():
            raise ValueError(
                f"too few rows on one of {self.plan.dp} data-parallel ranks at least ({rows} on this one): each needs "
                f"{needed} or more, one for each microbatch"
            )
        if not count:
            raise ValueError(f"no target counts: all of them are {IGNORED}, on every rank")
        return int(count)

    def _share_balance(self, rows: int) -> None:
        """Tell layers that have a balance loss what a sequence counts, so that their gradient is that of the mean."""
        layers = [layer for layer in sparse_layers(self.module) if layer.alpha]
        if layers:  # the other ranks of dp have the same layers
            group = self.mesh["dp"].get_group()
            dist.all_reduce(total := torch.tensor(rows, device=self.mesh.device_type), group=group)
            for layer in layers:
                layer.share = group.size() / total.item()

    # ---- the gradient's norm --------------------------------------------------------------------------------------

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float = math.inf) -> Tensor:
        """Scale the gradients so that their norm, over all parameters of the model, is at most ``max_norm``.

        Each element counts once, however many ranks hold it. ``torch.nn.utils.clip_grad_norm_`` on this rank's
        parameters (with ZeRO 1 and 2, on those of the optimizer's ``param_groups``) does the same.

        Returns:
            The norm as it was. All ranks call it, and get the same.

        Raises:
            ValueError: the norm is not finite; every rank raises it, and nothing is changed.
        """
        held = [(part.parameter.grad.as_subclass(Tensor), self._holders(part)) for part in self.parts()]
        return clip_grad_norm(held, max_norm, None, self.mesh.device_type)

    def parts(self) -> list[Part]:
        """What has a gradient on this rank."""
        return [part for part in self.data.parts() if part.parameter.grad is not None]

    def _holders(self, part: Part) -> int:
        """How many ranks of the plan hold the same elements."""
        return part.copies * self.whole.holders(part.names[0])

    def _mark_gradients(self) -> None:
        """Let PyTorch's own clip_grad_norm_ and GradScaler see the gradient of the whole model."""
        if self.plan.tp * self.plan.pp * self.plan.ep == 1 and self.plan.zero == 0:
            return  # every rank has all of it
        for part in self.parts():
            gradient = part.parameter.grad.as_subclass(Tensor)
            part.parameter.grad = ShardedGradient.of(gradient, None, self._holders(part))

    # ---- as a module ----------------------------------------------------------------------------------------------

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What this rank holds, by the names of the plain model; with zero 3 its shards."""
        yield from getattr(self.data, "fsdp", self.module).named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:
        for _, parameter in self.named_parameters():
            yield parameter

    def train(self, mode: bool = True) -> ParallelModel:
        self.module.train(mode)
        return self

    def eval(self) -> ParallelModel:
        return self.train(False)

    def memory(self, optimizer: Optimizer) -> MemoryBreakdown:
        """Bytes of model states alive on this rank now."""
        return self.data.memory(optimizer)

    # ---- whole tensors, as on one device: all ranks call these, and all get them in the CPU's memory ----------------

    def gradients(self) -> dict[str, Tensor]:
        """The gradient of each parameter that has one."""
        return self.whole.everywhere(self.data.gradients())

    def state_dict(self) -> dict[str, Tensor]:
        """The plain model loads it with ``load_state_dict``, and so does this one under any other plan.

        Of buffers, such as BatchNorm's statistics, those of the first data-parallel rank count.
        """
        return self.whole.under_all_names(
            self.whole.everywhere({**dict(self.data.parameters()), **dict(self.buffers())})
        )

    def held_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Of this rank's layers, by the names of the plain model; those that a ``state_dict`` holds."""
        named = self.module.named_buffers(remove_duplicate=False)
        return ((name, buffer) for name, buffer in named if name in self.whole.buffers)

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Those of the first data-parallel rank; all ranks call it."""
        held = {name: buffer.clone() for name, buffer in self.held_buffers()}
        broadcast_together(list(held.values()), self.mesh["dp"].get_group())
        yield from held.items()

    @torch.no_grad()
    def load_buffers(self, whole: Mapping[str, Tensor]) -> None:
        for name, buffer in self.held_buffers():
            buffer.copy_(whole[name])

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take this rank's part of a state of the whole model.

        Raises:
            ValueError: names or shapes are others than the model's; nothing is changed.
        """
        parts = self.whole.own_parts(state)
        self.data.load_parameters(parts)
        self.load_buffers(parts)

    def optimizer_state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer as one device would have it: ``{"state": {name: {"exp_avg": …}}, "param_groups": […]}``."""
        local = self.data.optimizer_state(optimizer)
        return self.whole.optimizer_everywhere(local)

    def load_optimizer_state_dict(self, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
        """Take this rank's part of what ``optimizer_state_dict`` gave, under this plan or another."""
        names = [name for part in self.data.parts() for name in part.names]
        self.data.load_optimizer_state(optimizer, self.whole.own_optimizer_parts(state, names))
