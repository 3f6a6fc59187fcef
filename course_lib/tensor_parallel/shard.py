"""Which part of a weight this rank holds: equal columns, whole heads, or rows of a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from simulator.inputs.chunks import chunk_sizes


@dataclass(frozen=True)
class Shard:
    """``length`` rows (``dim`` 0) or columns (``dim`` 1) of a tensor that has ``whole`` of them, from ``start`` on.

    ``copies`` neighbouring ranks hold the same part.
    """

    dim: int
    start: int
    length: int
    whole: int
    copies: int = 1

    def of(self, tensor: Tensor) -> Tensor:
        """This rank's part of a whole tensor, as a view."""
        return tensor.narrow(self.dim, self.start, self.length)


def equal_shard(
    whole: int,
    mesh: DeviceMesh,
    *,
    dim: int = 0,
    unit: int = 1,
    what: str = "columns",
) -> Shard:
    """One p-th, in multiples of ``unit`` (the size of a head).

    Raises:
        ValueError: the number of ranks p does not divide the number of units.
    """
    units, p = whole // unit, mesh.size()
    if units % p:
        raise ValueError(f"{p} ranks cannot share {units} {what} equally: choose a divisor of {units}")
    length = whole // p
    return Shard(dim, mesh.get_local_rank() * length, length, whole)


def kv_shard(whole: int, mesh: DeviceMesh, *, unit: int) -> Shard:
    """Heads of keys and values: an equal share, or one head that neighbouring ranks hold together.

    With fewer heads than ranks, rank r holds the head that its query heads use: r · heads // p.

    Raises:
        ValueError: the number of ranks p neither divides the number of heads nor is a multiple of it.
    """
    heads, p = whole // unit, mesh.size()
    if p <= heads or p % heads:
        if heads % p:
            raise ValueError(
                f"{p} ranks cannot share {heads} heads of keys and values: "
                f"choose a divisor or a multiple of {heads}"
            )
        return equal_shard(whole, mesh, unit=unit)
    head = mesh.get_local_rank() * heads // p
    return Shard(0, head * unit, unit, whole, copies=p // heads)


def vocabulary_shard(vocabulary: int, mesh: DeviceMesh) -> Shard:
    """Rows of an embedding. Where p does not divide their number the first ranks hold one more; nothing is padded.

    Raises:
        ValueError: fewer rows than ranks.
    """
    if vocabulary < mesh.size():
        raise ValueError(
            f"a vocabulary of {vocabulary} cannot be dealt to {mesh.size()} ranks: choose at most {vocabulary} ranks"
        )
    sizes, rank = chunk_sizes(vocabulary, mesh.size()), mesh.get_local_rank()
    return Shard(0, sum(sizes[:rank]), sizes[rank], vocabulary)
