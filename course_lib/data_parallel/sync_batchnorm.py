"""BatchNorm with the mean and variance of the batch of all ranks.

Plain BatchNorm normalises by the mean and variance of the images in its input, and under data parallelism these
are the images of one rank. It is the only layer of ResNet for which four ranks with 16 images each compute
something else than one device with 64. Two small all-reduces for each layer, one for the mean and one for the
variance, make them equal.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.batchnorm import _BatchNorm


class SumOverRanks(torch.autograd.Function):
    """The sum over all ranks. Its backward is the same sum, because the loss of every rank depends on every input."""

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
    """BatchNorm with the statistics of the whole batch; ranks may hold different numbers of its images.

    Args:
        like: the layer to replace; its parameters and buffers are used, not copied.
        group: the ranks that hold the batch; by default all.

    Raises:
        ValueError: the input has no channels; or, in training, all ranks together have one value per channel, which has
            no variance.
    """

    def __init__(self, like: _BatchNorm, group: ProcessGroup | None = None) -> None:
        super().__init__(like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats)
        self.weight, self.bias = like.weight, like.bias
        for name, buffer in like.named_buffers(recurse=False):
            setattr(self, name, buffer)
        self.group = group
        self.train(like.training)

    def forward(self, x: Tensor) -> Tensor:  # (batch of this rank, channels, …)
        self._check_input_dim(x)
        if not self.training:
            return super().forward(x)
        dtype = x.dtype
        if x.element_size() < 4:  # sums over a batch need more than 16 bits
            x = x.float()
        over = [d for d in range(x.dim()) if d != 1]  # all dimensions but the channels
        shape = [1, -1] + [1] * (x.dim() - 2)
        here = x.numel() // x.shape[1]  # values per channel on this rank
        total = SumOverRanks.apply(torch.cat([x.sum(over), x.new_tensor([here])]), self.group)
        if here <= 1 and total[-1] <= 1:  # in this order: reading the total makes a GPU's queue wait
            raise ValueError(
                f"BatchNorm needs more than one value per channel in training, not {list(x.shape)}"
            )
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
            raise ValueError(f"BatchNorm needs an input of shape (batch, channels, …), not {list(x.shape)}")


def synchronise_batchnorm(model: nn.Module, group: ProcessGroup | None = None) -> nn.Module:
    """Replace every BatchNorm of ``model`` by a ``SyncBatchNorm`` with the same parameters and buffers."""
    if isinstance(model, _BatchNorm):
        return SyncBatchNorm(model, group)
    for name, child in model.named_children():
        setattr(model, name, synchronise_batchnorm(child, group))
    return model
