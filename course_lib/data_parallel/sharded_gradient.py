"""The gradient of a shard, of which the functions of PyTorch that need the whole gradient take the whole.

``torch.nn.utils.clip_grad_norm_`` on plain shards would take the norm of this rank's shards, and ``GradScaler`` would
skip a step on one rank and not on another. On a ``ShardedGradient`` a norm is taken over the shards of all ranks, and
so is the search for infinities and NaNs. Everything else works on this rank's elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from course_lib.one_device.muon import WholeMatrices
from course_lib.one_device.nested_tensors import map_tensors, tensors_in

NOT_ELEMENTWISE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
NORMS = (torch.norm, Tensor.norm, torch.linalg.norm, torch.linalg.vector_norm)


class ShardedGradient(Tensor):
    """A tensor like any other, but its norm is that of the whole gradient: a ``ShardedNorm``.

    Attributes:
        group: the ranks that hold the other shards.
        holders: how many of them hold the same elements as this one, which count once.
    """

    group: ProcessGroup | None
    holders: int

    @staticmethod
    def of(shard: Tensor, group: ProcessGroup | None, holders: int = 1) -> ShardedGradient:
        gradient = shard.as_subclass(ShardedGradient)
        gradient.group, gradient.holders = group, holders
        return gradient

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Iterable[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func in NORMS:
                return _norm(*args, **kwargs)
            if func is torch._foreach_norm:
                return [_norm(g, *args[1:], **kwargs) for g in args[0]]
            result = func(*args, **kwargs)
            if func is torch._amp_foreach_non_finite_check_and_unscale_:  # what GradScaler calls
                found_infinity = args[1]
                for group in {g.group for g in args[0] if isinstance(g, ShardedGradient)}:
                    dist.all_reduce(found_infinity, dist.ReduceOp.MAX, group=group)
            return result


def _norm(gradient: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, **dtype: Any) -> Tensor:
    ord = 2.0 if ord in (None, "fro") else float(ord)
    if dim is not None or keepdim:
        raise ValueError(
            "a shard is a flat part of a gradient: only the norm over all its elements has a meaning"
        )
    if not gradient.numel():  # a rank may own no element
        norm = torch.linalg.vector_norm(gradient.new_zeros(1), ord, **dtype)
    else:
        norm = torch.linalg.vector_norm(gradient, ord, **dtype)
    if not isinstance(gradient, ShardedGradient):
        return norm
    return ShardedNorm.of(norm / gradient.holders ** (1 / ord), ord, gradient.group)


class ShardedNorm(Tensor):
    """Norms of this rank's shards: (), or (n,) when stacked. Ranks exchange them when the value is first used.

    ``clip_grad_norm_`` stacks the norms of all gradients and takes the norm of that, so it costs one small all-reduce,
    however many gradients there are. All ranks of the group must ask for the value.
    """

    @staticmethod
    def of(norm: Tensor, ord: float, group: ProcessGroup | None) -> ShardedNorm:
        norm = norm.as_subclass(ShardedNorm)
        norm.ord, norm.group = ord, group
        return norm

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Iterable[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_in((args, kwargs))
        first = next(t for t in tensors if isinstance(t, ShardedNorm))
        alike = all(
            isinstance(t, ShardedNorm) and (t.ord, t.group) == (first.ord, first.group) for t in tensors
        )
        with torch._C.DisableTorchFunctionSubclass():
            if func in (Tensor.to, torch.stack) and alike:
                return ShardedNorm.of(func(*args, **kwargs), first.ord, first.group)
            if func is torch.linalg.vector_norm and args[1:] == (first.ord,):
                total = torch.linalg.vector_norm(args[0].as_subclass(Tensor), first.ord)
                return ShardedNorm.of(total, first.ord, first.group).over_all_ranks()
            args, kwargs = map_tensors(lambda norm: norm.over_all_ranks(), (args, kwargs), ShardedNorm)
            return func(*args, **kwargs)

    def over_all_ranks(self) -> Tensor:
        """The norm of the whole gradient."""
        norm = self.as_subclass(Tensor)
        if self.ord == float("inf"):
            dist.all_reduce(norm, dist.ReduceOp.MAX, group=self.group)
            return norm
        powers = norm.pow(self.ord)
        dist.all_reduce(powers, group=self.group)
        return powers.pow(1 / self.ord)


def check_elementwise(optimizer_class: type[Optimizer]) -> None:
    """Refuse an optimizer that looks at rows or matrices, which a shard does not have.

    Raises:
        ValueError: the optimizer does not update each element by itself.
    """
    if optimizer_class.__name__ in NOT_ELEMENTWISE:
        raise ValueError(
            f"{optimizer_class.__name__} does not update each element by itself, and a shard is a flat part of "
            "many tensors: use an elementwise optimizer such as Adam, AdamW or SGD"
        )


def _before_step(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
    shards = [g for g in gradients if isinstance(g, ShardedGradient)]
    if shards:
        check_elementwise(type(optimizer))
    if type(getattr(optimizer, "places", None)) is WholeMatrices and any(g.group for g in shards):
        raise ValueError(
            "MuonWithAdamW turns whole matrices, and these are shards: its places must be ShardedMatrices"
        )


register_optimizer_step_pre_hook(
    _before_step
)  # refuse it also where a script makes it from an FSDP model's parameters
