"""Values for parameters that have none yet (on the meta device): each rank reads its own part of them, and no more.

A model of any size can be cut without memory. Only then is it known what a rank holds: the stages of a pipeline, the
columns of a matrix, the shard of a flat buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.data_parallel.broadcast import broadcast_together
from course_lib.models.pretrained.family import fill

# The name of a parameter in the whole model, and from where to where in each dimension.
Read = Callable[[str, Sequence[tuple[int, int]]], Tensor]


def start(model: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
    """To the device and the dtype; rank 0's values on all ranks. What has no values stays without."""
    model._apply(lambda t: t.to(None if t.is_meta else device, dtype if t.is_floating_point() else None))
    broadcast_together([t for t in [*model.parameters(), *model.buffers()] if not t.is_meta])


class FirstValues:
    """Reads what this rank holds.

    Args:
        model: the whole model, cut by tensor parallelism.
        read: None: all parameters must have values.
        first_name: of a tied parameter, by each of its names.
        shards: which part of a parameter (``dim``, ``start``, ``length``) this rank holds, where it is cut.

    Raises:
        ValueError: parameters have no values, and nobody reads them.
    """

    def __init__(
        self, model: nn.Module, read: Read | None, first_name: Mapping[str, str], shards: Mapping[str, Any]
    ) -> None:
        self.names = {name for name, p in model.named_parameters() if p.is_meta}
        if self.names and read is None:
            some = ", ".join(sorted(self.names)[:3])
            raise ValueError(f"{some} have no values (they are on the meta device): give read=")
        self.read, self.first_name, self.shards = read, first_name, shards

    def part(self, name: str, shape: Sequence[int], rows: tuple[int, int] | None = None) -> Tensor:
        """What this rank holds of a parameter, in its ``shape``; or these ``rows`` of that."""
        extents = [(0, n) for n in shape]
        if rows is not None:
            extents[0] = rows
        if name in self.shards:
            shard = self.shards[name]
            low, high = extents[shard.dim]
            extents[shard.dim] = (shard.start + low, shard.start + high)
        return self.read(self.first_name.get(name, name), extents)

    def fill(self, roots: Iterable[nn.Module], device: torch.device, *, parameters: bool) -> None:
        """Parameters and buffers of what is left after pipeline parallelism, under their names in the whole model.

        Args:
            parameters: False: FSDP will shard them, so buffers alone.
        """
        roots = list(roots)
        chosen = None if parameters else {b for root in roots for b in root.buffers()}
        fill(roots, lambda name, t: self.part(name, t.shape), device, chosen)

    @torch.no_grad()
    def fill_shards(self, flats: Iterable[Any]) -> None:
        """The elements of FSDP's flat buffers that this rank has: the rows in which they are are read."""
        for flat in flats:
            for i, p in enumerate(flat.parameters):
                low, high = flat.extent(i)
                if p.name not in self.names or low == high:
                    continue
                first = low + flat.rank * flat.shard_size - flat.starts[i]  # among the parameter's elements
                row = max(1, flat.shapes[i][1:].numel())
                rows = first // row, -(-(first + high - low) // row)
                values = self.part(p.name, flat.shapes[i], rows).flatten()[first - rows[0] * row :]
                flat.shard[low:high] = values[: high - low].to(flat.shard)
