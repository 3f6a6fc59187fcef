"""Decentralised averaging: each rank averages its weights with a few neighbours, and no all-reduce is needed.

D-PSGD (Lian et al., arXiv:1705.09056): rank i computes its gradient g_i at its own weights x_i and updates
x_i <- sum over j of W[i][j] x_j - lr g_i, with the mixing matrix W. In low precision neighbours send how their
weights changed, in 8 bits, as in CHOCO-SGD (Koloskova et al., arXiv:1902.00340) and Bagua (arXiv:2107.01499).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from course_lib.compression.bytegrad import MinMax8
from course_lib.compression.compressed_all_reduce import Codec
from course_lib.compression.hook import CommHook, GradBucket, assign, flatten
from simulator.inputs.mixing import Matrix, check_matrix


class Decentralised(CommHook):
    """A hook that mixes the weights of the bucket and gives the optimizer this rank's own gradient.

    The weights travel while backward goes on, because backward does not change them. They are mixed when backward has
    ended. Then the optimizer subtracts the gradient from the mixed weights.

    Args:
        mixing: step (from 0) -> mixing matrix; the same on all ranks, such as ``lambda step: ring_matrix(4)``.
    """

    def __init__(self, mixing: Callable[[int], Matrix], warmup_steps: int = 0) -> None:
        super().__init__(warmup_steps)
        self.mixing = mixing

    def exchange(self, bucket: GradBucket) -> Iterator[dist.Work]:
        me, p = dist.get_rank(bucket.group), dist.get_world_size(bucket.group)
        matrix = self.mixing(self.steps[bucket.name] - 1)
        check_matrix(matrix, p)
        weights = flatten(bucket.parameters)  # x_i, (n,)
        received = {j: torch.empty_like(weights) for j in range(p) if matrix[me][j] and j != me}
        readers = [j for j in range(p) if matrix[j][me] and j != me]
        yield from exchange_with(dict.fromkeys(readers, weights), received, bucket.group)
        mixed = matrix[me][me] * weights
        for j, theirs in received.items():  # x_j
            mixed += matrix[me][j] * theirs
        assign(bucket.parameters, mixed)
        bucket.buffer.mul_(p)  # from this rank's part of an average to its own gradient


class LowPrecisionDecentralised(CommHook):
    """The same with 8-bit messages: each rank sends how far its weights are from what its neighbours believe.

    Every rank keeps a replica of its own weights as the others know them, and one of each neighbour's. A message is
    the coded difference between weights and replica, and all holders of the replica add it. The closer replicas come
    to the weights, the finer are the steps of the code. Then the rank mixes by the replicas r:
    x_i <- x_i + sum over j of W[i][j] (r_j - r_i).

    Args:
        matrix: one mixing matrix for all steps, because only neighbours have a replica.
        codec: by default 8 bits from the smallest to the largest change in a bucket.
    """

    def __init__(self, matrix: Matrix, codec: Codec | None = None, warmup_steps: int = 0) -> None:
        super().__init__(warmup_steps)
        check_matrix(matrix)
        self.matrix, self.codec = matrix, codec or MinMax8()
        self.replicas: dict[str, dict[int, Tensor]] = {}  # bucket name -> rank -> (n,)

    def exchange(self, bucket: GradBucket) -> Iterator[dist.Work]:
        me, p, matrix = dist.get_rank(bucket.group), dist.get_world_size(bucket.group), self.matrix
        check_matrix(matrix, p)
        weights = flatten(bucket.parameters)  # x_i, (n,)
        read = [j for j in range(p) if matrix[me][j] and j != me]
        readers = [j for j in range(p) if matrix[j][me] and j != me]
        if bucket.name not in self.replicas:  # DDP has made all ranks equal
            self.replicas[bucket.name] = {j: weights.clone() for j in (me, *read)}
        replicas = self.replicas[bucket.name]
        message = self.codec.encode((weights - replicas[me])[None])  # (1, bytes)
        received = {j: torch.empty_like(message) for j in read}
        yield from exchange_with(dict.fromkeys(readers, message), received, bucket.group)
        for j, change in (received | {me: message}).items():
            replicas[j] += self.codec.decode(change, len(weights))[0]
        for j in read:
            weights += matrix[me][j] * (replicas[j] - replicas[me])
        assign(bucket.parameters, weights)
        bucket.buffer.mul_(p)


class Messages:
    """Sends and receives that are under way, as one message to wait for."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        self.works = works
        self.arrived: torch.futures.Future[None] = torch.futures.Future()

    def get_future(self) -> torch.futures.Future[None]:
        return self.arrived

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.arrived.set_result(None)


def exchange_with(
    outgoing: dict[int, Tensor], incoming: dict[int, Tensor], group: ProcessGroup | None
) -> Iterator[Messages]:
    """Send each tensor of ``outgoing`` to its rank, and receive into each of ``incoming``; both may be empty."""
    sends = [dist.P2POp(dist.isend, t, group=group, group_peer=j) for j, t in outgoing.items()]
    receives = [dist.P2POp(dist.irecv, t, group=group, group_peer=j) for j, t in incoming.items()]
    if sends or receives:
        yield Messages(dist.batch_isend_irecv(sends + receives))


@torch.no_grad()
def consensus_distance(parameters: Sequence[Tensor], group: ProcessGroup | None = None) -> float:
    """How far the ranks' weights are from each other: the root of the sum over all ranks of |x_i - mean|².

    It sends the weights in an all-reduce. So it is for looking at, and not for every step.
    """
    parameters = list(parameters)
    mine = flatten(parameters).double()
    mean = mine.clone()
    dist.all_reduce(mean, group=group)
    mean /= dist.get_world_size(group)
    squared = (mine - mean).square().sum()
    dist.all_reduce(squared, group=group)
    return squared.sqrt().item()
