"""BatchNorm over the batch of all ranks.

Plain BatchNorm normalises by the mean and variance of the images it sees, and under data parallelism a rank sees
only its own: the one layer of ResNet for which four ranks with 16 images each are not one device with 64.
Two small all-reduces per layer, one for the mean and one for the variance, restore the equality.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.batchnorm import _BatchNorm


class SumOverRanks(torch.autograd.Function):
    """All-reduce whose backward is an all-reduce: every rank's loss depends on what every rank put in."""

    @staticmethod
    def forward(ctx, t: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        t = t.clone()
        dist.all_reduce(t, group=group)
        return t

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class SyncBatchNorm(_BatchNorm):
    """BatchNorm with the statistics of the whole batch, whatever part of it each rank holds."""

    def __init__(self, like: _BatchNorm, group: ProcessGroup | None = None) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats)
        self.weight, self.bias = like.weight, like.bias
        for name, buffer in like.named_buffers(recurse=False):
            setattr(self, name, buffer)
        self.group = group
        self.train(like.training)

    def forward(self, x: Tensor) -> Tensor:  # (batch of this rank, channels, …)
        if not self.training:
            return super().forward(x)
        dtype = x.dtype
        if x.element_size() < 4:  # sums over a batch need more than 16 bits
            x = x.float()
        over = [d for d in range(x.dim()) if d != 1]  # all dimensions but the channels
        shape = [1, -1] + [1] * (x.dim() - 2)
        here = x.new_tensor([x.numel() / x.shape[1]])  # values per channel on this rank
        total = SumOverRanks.apply(torch.cat([x.sum(over), here]), self.group)
        mean, count = total[:-1] / total[-1], total[-1]
        centred = x - mean.view(shape)
        variance = SumOverRanks.apply(centred.square().sum(over), self.group) / count
        if self.track_running_stats:
            self._update_running(mean.detach(), variance.detach() * count / (count - 1))
        normalised = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normalised = normalised * self.weight.view(shape) + self.bias.view(shape)
        return normalised.to(dtype)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor) -> None:
        self.num_batches_tracked += 1
        momentum = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        for running, value in ((self.running_mean, mean), (self.running_var, variance)):
            running.lerp_(value.to(running.dtype), momentum)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"BatchNorm needs (batch, channels, …), not a tensor of {x.dim()} dimensions")


def synchronise_batchnorm(model: nn.Module, group: ProcessGroup | None = None) -> nn.Module:
    """Replace every BatchNorm of ``model`` by a ``SyncBatchNorm`` with the same parameters and buffers."""
    if isinstance(model, _BatchNorm):
        return SyncBatchNorm(model, group)
    for name, child in model.named_children():
        setattr(model, name, synchronise_batchnorm(child, group))
    return model
