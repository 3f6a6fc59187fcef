"""PowerSGD (Vogels et al., arXiv:1905.13727): a gradient matrix is sent as the product of two thin matrices.

A gradient M (n x m) is replaced by P Qᵀ, with P (n x r) and Q (m x r): (n + m) r numbers instead of n m. One step of
power iteration finds P and Q, beginning with the Q of the step before. Both of its products are linear in M, so an
all-reduce adds up what the ranks computed, and the result is that of the averaged matrix.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.compression.error_feedback import ErrorFeedback
from course_lib.compression.hook import CommHook, GradBucket, assign, flatten, unflatten
from simulator.inputs.checks import at_least, positive
from simulator.inputs.compression import low_rank


class PowerSGD(CommHook):
    """Rank-r gradients with error feedback. Vectors, such as biases, are averaged as they are.

    A convolution's weight (out, in, height, width) counts as a matrix (out, in · height · width).

    Args:
        matrix_rank: r, the columns of P and Q.
        error_feedback: False drops what the product misses.
        warm_start: begin with the Q of the step before; False: with random numbers in each step.
        min_compression: a matrix is compressed where (n + m) r times this is less than n m.
        warmup_steps: plain averages in so many first steps.
        seed: of the first Q; the same on all ranks.
    """

    def __init__(
        self,
        matrix_rank: int = 1,
        error_feedback: bool = True,
        warm_start: bool = True,
        min_compression: float = 2,
        warmup_steps: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(warmup_steps)
        at_least(1, matrix_rank=matrix_rank)
        at_least(0, seed=seed)
        positive(min_compression=min_compression)
        self.matrix_rank, self.min_compression, self.warm_start = matrix_rank, min_compression, warm_start
        self.feedback = ErrorFeedback() if error_feedback else None
        self.draws = torch.Generator().manual_seed(seed)
        self.q: dict[str, list[Tensor]] = {}  # bucket name -> the Q of each compressed matrix

    def exchange(self, bucket: GradBucket) -> Iterator[dist.Work]:
        group, buffer = bucket.group, bucket.buffer
        if self.feedback:
            buffer.copy_(self.feedback.add(bucket.name, buffer))
        wanted = buffer.clone()
        ranks = [low_rank(view.shape, self.matrix_rank, self.min_compression) for view in bucket.views]
        matrices = [
            view.view(len(view), -1) for view, r in zip(bucket.views, ranks, strict=True) if r
        ]  # M: (n, m)
        others = [view for view, r in zip(bucket.views, ranks, strict=True) if not r]
        started = self._start(bucket.name, matrices, [r for r in ranks if r])
        qs = [orthogonalise(q) for q in started]  # (m, r)
        ps = [m @ q for m, q in zip(matrices, qs, strict=True)]  # (n, r)
        flat_others, flat_ps = flatten(others), flatten(ps)
        yield from [dist.all_reduce(t, group=group, async_op=True) for t in (flat_others, flat_ps) if len(t)]
        assign(others, flat_others)
        ps = [orthogonalise(total) for total in unflatten(flat_ps, ps)]
        qs = [m.T @ p for m, p in zip(matrices, ps, strict=True)]  # (m, r)
        flat_qs = flatten(qs)
        yield from [dist.all_reduce(t, group=group, async_op=True) for t in (flat_qs,) if len(t)]
        self.q[bucket.name] = unflatten(flat_qs, qs)
        for m, p, q in zip(matrices, ps, self.q[bucket.name], strict=True):
            m.copy_(p @ q.T)
        if self.feedback:
            self.feedback.keep(bucket.name, wanted, sent=buffer / dist.get_world_size(group))

    def _start(self, name: str, matrices: list[Tensor], ranks: list[int]) -> list[Tensor]:
        """The Q of the step before, or in the first step random numbers, the same on all ranks."""
        if self.warm_start and name in self.q:
            return self.q[name]
        shapes = [(m.shape[1], r) for m, r in zip(matrices, ranks, strict=True)]
        return [
            torch.randn(s, generator=self.draws, dtype=m.dtype).to(m)
            for s, m in zip(shapes, matrices, strict=True)
        ]


def orthogonalise(matrix: Tensor) -> Tensor:
    """An orthonormal basis of the matrix's columns: (n, r) -> (n, r) with r <= n."""
    full = matrix if matrix.dtype == torch.float64 else matrix.float()  # no QR in 16 bits
    return torch.linalg.qr(full).Q.to(matrix.dtype)
