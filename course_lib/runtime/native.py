"""PyTorch's collectives on one tensor, under names that stay."""

from __future__ import annotations

import torch.distributed as dist

# (output, input, group=, async_op=); torch 2.13 renamed the two and warns where the old name is used.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
