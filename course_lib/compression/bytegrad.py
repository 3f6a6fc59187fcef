"""ByteGrad: gradients in 8 bits (Bagua, arXiv:2107.01499).

A number takes one byte instead of four, so a rank sends about a quarter of what it sends in DDP.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.compression.compressed_all_reduce import compressed_all_reduce
from course_lib.compression.hook import CommHook, GradBucket


class MinMax8:
    """Each row in 8 bits: 255 equal steps from its smallest to its largest element.

    A code is rounded to the nearest step, so an element is wrong by half a step at most: (max - min) / 510. The
    row's smallest and largest element are sent before the codes, 4 bytes each.
    """

    def encode(self, rows: Tensor) -> Tensor:
        """(r, c) float -> (r, 8 + c) uint8."""
        low, high = rows.aminmax(dim=1, keepdim=True)  # (r, 1) each
        step = (high - low) / 255
        codes = ((rows - low) / step.where(step > 0, 1)).round()  # a row of equal elements has only code 0
        header = torch.cat([low, high], dim=1).float().view(torch.uint8)  # (r, 8)
        return torch.cat([header, codes.clamp(0, 255).to(torch.uint8)], dim=1)

    def decode(self, message: Tensor, columns: int) -> Tensor:
        """(r, 8 + c) uint8 -> (r, c) float32."""
        header = (
            message[:, :8].flatten().clone().view(torch.float32)
        )  # a copy, because a view must lie on 4 bytes
        low, high = header.view(-1, 2).split(1, dim=1)
        return low + message[:, 8 : 8 + columns] * ((high - low) / 255)


class ByteGrad(CommHook):
    """The average in 8 bits, without error feedback. Its error in an element is at most the sum of all half steps:
    one of each rank's row, and one of the row of sums."""

    def exchange(self, bucket: GradBucket) -> Iterator[dist.Work]:
        return compressed_all_reduce(bucket, MinMax8())
