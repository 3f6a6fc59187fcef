"""1-bit Adam: the momentum is sent as signs (Tang et al., arXiv:2102.02888); in 8 bits it is QAdam.

Error feedback needs an update that is linear in what is sent, and Adam divides by the root of ``exp_avg_sq``, which is
not. But after some time ``exp_avg_sq`` changes little. So there are two stages. In the warm-up the ranks average
gradients and make steps of Adam. Then ``exp_avg_sq`` is frozen, and the ranks average the momentum, in one bit.
Bagua's QAdam has no error feedback; here it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.compression.compressed_all_reduce import Codec, compressed_all_reduce
from course_lib.compression.error_feedback import ErrorFeedback
from course_lib.compression.hook import CommHook, GradBucket, all_reduce, flatten
from course_lib.one_device.adam import Adam
from simulator.inputs.checks import at_least


class Signs:
    """One bit an element: its sign. One scale for the row, 4 bytes: the mean magnitude of its elements.

    Of all scales this one loses least: |C(x) - x|² = |x|² - |x|₁² / c for a row of c elements.
    """

    def encode(self, rows: Tensor) -> Tensor:
        """(r, c) float -> (r, 4 + ceil(c / 8)) uint8."""
        scale = rows.abs().mean(dim=1, keepdim=True).float().view(torch.uint8)  # (r, 4)
        bits = F.pad((rows >= 0).to(torch.uint8), (0, -rows.shape[1] % 8)).view(len(rows), -1, 8)
        packed = bits[:, :, 0]
        for place in range(1, 8):  # eight bits in a byte, the first one highest
            packed = 2 * packed + bits[:, :, place]
        return torch.cat([scale, packed], dim=1)

    def decode(self, message: Tensor, columns: int) -> Tensor:
        """(r, 4 + ceil(c / 8)) uint8 -> (r, c) float32."""
        scale = message[:, :4].flatten().clone().view(torch.float32)[:, None]  # (r, 1)
        masks = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=message.device)
        positive = message[:, 4:, None].bitwise_and(masks) != 0  # (r, bytes, 8)
        return torch.where(positive.flatten(1)[:, :columns], scale, -scale)


class OneBit(CommHook):
    """Gradients as signs, with error feedback on both sides: of what a rank sends, and of the sums that it sends on.

    For SGD. For Adam, ``OneBitAdam`` sends the momentum instead.

    Args:
        codec: by default signs.
        warmup_steps: plain averages in so many first steps.
    """

    def __init__(self, codec: Codec | None = None, warmup_steps: int = 0) -> None:
        super().__init__(warmup_steps)
        self.codec = codec or Signs()
        self.sender, self.reducer = ErrorFeedback(), ErrorFeedback()

    def exchange(self, bucket: GradBucket) -> Iterator[dist.Work]:
        return compressed_all_reduce(bucket, self.codec, self.sender, self.reducer)


class OneBitAdam(Adam):
    """Adam whose momentum is averaged in one bit. Give its ``hook`` to DDP: ``DDP(model, comm_hook=optimizer.hook)``.

    An element whose gradient was 0 in the whole warm-up is not updated any more. Signs have no 0, so it would get the
    row's scale divided by ``eps``. (DeepSpeed has a mask for the momentum, for the same reason.)

    Args:
        params, lr, betas, eps: as of ``Adam``.
        warmup_steps: steps of plain Adam, at least 1; then ``exp_avg_sq`` is frozen.
        codec: by default signs; ``MinMax8()`` makes it QAdam.

    Attributes:
        hook: the comm hook. After the warm-up it leaves the averaged momentum in ``.grad``. So a step may have only one
            synchronised backward pass; accumulate gradients under ``no_sync``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        warmup_steps: int = 100,
        codec: Codec | None = None,
    ) -> None:
        at_least(1, warmup_steps=warmup_steps)
        super().__init__(params, lr, betas, eps)
        self.warmup_steps = warmup_steps
        self.hook = MomentumHook(self, codec)

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state or state["step"] < self.warmup_steps:
            super().update(parameter, gradient, group)
            return
        state["step"] += 1
        learns = state["exp_avg_sq"] > 0  # where all gradients were 0 so far, a sign would be divided by eps
        state["exp_avg"].copy_(gradient).mul_(learns)  # the hook has averaged the momentum
        beta1, beta2 = group["betas"]
        m_scale, v_scale = 1 - beta1 ** int(state["step"]), 1 - beta2**self.warmup_steps
        denominator = (state["exp_avg_sq"].sqrt() / v_scale**0.5).add_(group["eps"])
        parameter.addcdiv_(state["exp_avg"], denominator, value=-float(group["lr"]) / m_scale)


class MomentumHook(OneBit):
    """Puts this rank's momentum into the bucket instead of its gradient, and averages it.

    The average of beta1 m + (1 - beta1) g_i over the ranks is Adam's momentum of the average gradient, because m is the
    same on all ranks.
    """

    def __init__(self, optimizer: OneBitAdam, codec: Codec | None) -> None:
        super().__init__(codec)
        self.optimizer = optimizer

    def exchange(self, bucket: GradBucket) -> Iterator[dist.Work]:
        state = self.optimizer.state[bucket.parameters[0]]
        if not state or state["step"] < self.optimizer.warmup_steps:
            return all_reduce(bucket)
        p, beta1 = dist.get_world_size(bucket.group), self.optimizer.param_groups[0]["betas"][0]
        momentum = flatten([self.optimizer.state[parameter]["exp_avg"] for parameter in bucket.parameters])
        bucket.buffer.mul_(1 - beta1).add_(momentum, alpha=beta1 / p)  # this rank's part of the average
        return super().exchange(bucket)
