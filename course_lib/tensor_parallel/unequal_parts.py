"""All-gather and reduce-scatter along the sequence, where the ranks' parts may differ in length or be empty.

Equal parts take PyTorch's collectives, as in ``sequence.py``. Gloo's all-gather refuses unequal parts, so these go
around the ring of chapter 04, by sends and receives.

Shapes in comments: ``seq`` is the whole length, ``seq_i`` that of this rank's part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.runtime import trace
from course_lib.runtime.collectives import all_gather, exchange
from course_lib.tensor_parallel.sequence import Gathering, sum_to_shards


def own_part(x: Tensor, lengths: Sequence[int], group: ProcessGroup) -> Tensor:
    """``(batch, seq, …)`` to this rank's ``(batch, seq_i, …)``, as a view."""
    rank = group.rank()
    return x.narrow(1, sum(lengths[:rank]), lengths[rank])


def gather_parts(x: Tensor, lengths: Sequence[int], group: ProcessGroup, name: str = "all-gather") -> Tensor:
    """``(batch, seq_i, …)`` of each rank to ``(batch, seq, …)``, in rank order."""
    if len(set(lengths)) == 1:
        return Gathering(x, group, name).wait()
    with trace.span("communication", name):
        return all_gather(x.transpose(0, 1), lengths, group).transpose(0, 1)


def sum_to_parts(
    x: Tensor, lengths: Sequence[int], group: ProcessGroup, name: str = "reduce-scatter"
) -> Tensor:
    """The sum of the ranks' ``(batch, seq, …)``, of which each rank gets its ``(batch, seq_i, …)``."""
    if len(set(lengths)) == 1:
        return sum_to_shards(x, group, name)
    with trace.span("communication", name):
        return ring_reduce_scatter(x.transpose(0, 1), lengths, group).transpose(0, 1)


@torch.no_grad()
def ring_reduce_scatter(t: Tensor, rows: Sequence[int], group: ProcessGroup) -> Tensor:
    """Rank r gets ``rows[r]`` rows of the sum. Each chunk goes around the ring once, and every rank adds its own."""
    p, me = group.size(), group.rank()
    chunks = list(t.split(list(rows)))
    for step in range(p - 1):
        mine, theirs = (me - step - 1) % p, (me - step - 2) % p
        received = exchange(chunks[mine], (me + 1) % p, chunks[theirs], (me - 1) % p, group)
        chunks[theirs] = chunks[theirs] + received
    return chunks[me].clone()
