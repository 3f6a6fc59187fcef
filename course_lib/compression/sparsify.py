"""Sparsification: only a few elements of each bucket are sent, and error feedback keeps the others for later.

Top-k sends the k elements of the largest magnitude: Strom (Interspeech 2015), Aji and Heafield (arXiv:1704.05021),
Deep Gradient Compression (arXiv:1712.01887). Random-k sends k elements drawn at random. Both with error feedback:
Stich et al., "Sparsified SGD with Memory" (arXiv:1809.07599). For both, |C(x) - x|² <= (1 - k/n) |x|²: for top-k
always, for random-k on average over the draws.

A kept element may be many steps old and many gradients large when it is sent. Momentum makes this larger still, so use
SGD without it, or a smaller learning rate (Deep Gradient Compression corrects the momentum instead).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from course_lib.compression.error_feedback import ErrorFeedback
from course_lib.compression.hook import CommHook, GradBucket
from course_lib.runtime import native
from simulator.inputs.checks import at_least, part
from simulator.inputs.compression import kept


class TopK(CommHook):
    """Each rank sends the ``density`` part of its elements that is largest, with their places.

    The ranks choose different places, so the elements cannot be added up on the way: an all-gather takes all ranks'
    places and values to all. An element costs 8 bytes in fp32 (4 for its place), and a rank sends (p - 1) k of them.

    Args:
        density: k / n, above 0 and at most 1.
        error_feedback: False drops what is not sent.
    """

    def __init__(self, density: float = 0.01, error_feedback: bool = True, warmup_steps: int = 0) -> None:
        super().__init__(warmup_steps)
        part(density=density)
        self.density = density
        self.feedback = ErrorFeedback() if error_feedback else None

    def exchange(self, bucket: GradBucket) -> Iterator[dist.Work]:
        p, buffer = dist.get_world_size(bucket.group), bucket.buffer
        wanted = self.feedback.add(bucket.name, buffer) if self.feedback else buffer.clone()
        places = wanted.abs().topk(kept(self.density, len(wanted))).indices  # (k,)
        values = wanted[places]
        if self.feedback:
            self.feedback.keep(
                bucket.name, wanted, sent=torch.zeros_like(buffer).index_copy(0, places, values)
            )
        all_places, all_values = (
            places.new_empty(p * len(places), dtype=torch.int32),
            values.new_empty(p * len(values)),
        )
        sends = [
            native.all_gather(all_places, places.int(), group=bucket.group, async_op=True),
            native.all_gather(all_values, values, group=bucket.group, async_op=True),
        ]
        yield from sends
        buffer.zero_().index_add_(0, all_places.long(), all_values)


class RandomK(CommHook):
    """All ranks send the same elements, drawn anew in each step, so an all-reduce of k values does it, without places.

    Args:
        density: k / n, above 0 and at most 1.
        error_feedback: False drops what is not sent.
        seed: of the draws; the same on all ranks.
    """

    def __init__(
        self, density: float = 0.01, error_feedback: bool = True, warmup_steps: int = 0, seed: int = 0
    ) -> None:
        super().__init__(warmup_steps)
        part(density=density)
        at_least(0, seed=seed)
        self.density = density
        self.feedback = ErrorFeedback() if error_feedback else None
        self.draws = torch.Generator().manual_seed(seed)

    def exchange(self, bucket: GradBucket) -> Iterator[dist.Work]:
        wanted = self.feedback.add(bucket.name, bucket.buffer) if self.feedback else bucket.buffer.clone()
        chosen = torch.randperm(len(wanted), generator=self.draws)[: kept(self.density, len(wanted))]
        places = chosen.to(wanted.device)  # (k,)
        values = wanted[places]
        sent = torch.zeros_like(wanted).index_copy(0, places, values)
        if self.feedback:
            self.feedback.keep(bucket.name, wanted, sent)
        yield dist.all_reduce(values, group=bucket.group, async_op=True)
        bucket.buffer.zero_().index_copy_(0, places, values)
