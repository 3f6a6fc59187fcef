"""Seconds that a rank computes around the messages of a BERT's hybrid layers, measured here, block by block.

Before a message a rank adds and copies, and after it takes apart what has come. In a step these seconds come on top of
those of the blocks (``share_seconds.py``). ``simulator.predict.shares.measured_seconds`` takes both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import add

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from course_lib.observe.share_seconds import BothWays
from course_lib.tensor_parallel.galaxy import Moves
from course_lib.tensor_parallel.layers import f
from course_lib.tensor_parallel.sequence import EnterTogether
from simulator.inputs.galaxy import deal_shares, placement_of_blocks
from simulator.inputs.shape import ModelShape
from simulator.planner.layer_split import TIMED_AS


class Handling:
    """What a rank computes around the messages of each block, forward and backward: copies, sums and calls.

    It follows at once on what the block computes, so there are no pauses. All ranks of the mesh make one, and call it
    together.

    Args:
        shape: of a BERT.
        placement: as ``apply_galaxy``'s, and ``shares`` its lists.
        batch: sequences.
    """

    def __init__(
        self,
        shape: ModelShape,
        mesh: DeviceMesh,
        placement: str | Mapping[str, str],
        shares: Mapping[str, Sequence[int]],
        batch: int = 1,
    ) -> None:
        group, placed = mesh.get_group(), placement_of_blocks(placement)
        hidden, columns, seq = shape.hidden, shape.ffn, shape.sequence
        moves = Moves(placement, "post-norm", mesh, first=False)
        moves.lengths = deal_shares(mesh.size(), shape.heads, columns, shares).tokens(seq)
        own = moves.own_range()[1]
        self.kinds = {block: TIMED_AS[block.partition("_")[0], where] for block, where in placed.items()}
        self.work: list[tuple[str, BothWays]] = []
        for block, transition in moves.transitions.items():
            if block == "connection_2":  # after the last layer; between two layers it is "input"
                continue
            x = torch.randn(batch, own if transition.result == "part" else seq, hidden)
            if block == "keys":
                x = torch.randn(batch, own, shape.heads, 2 * shape.head_size)
            block_of = {"input": "connection_2", "keys": "attention"}.get(block, block)
            self._add(block_of, lambda x, block=block: moves(block, x), x)
        # Parameters of which each rank computes a part of the gradient: it is summed over the ranks.
        norm, linear = [(hidden,), (hidden,)], [(hidden, hidden), (hidden,)]
        mlp = [[(columns, hidden), (columns,)], [(hidden, columns), (hidden,)]]
        modules = {"attention": [linear] * 4, "mlp": mlp, "connection_1": [norm], "connection_2": [norm]}
        for block, where in placed.items():
            if where == "sequence":
                for sizes in modules[block]:
                    parameters = [torch.randn(*size) for size in sizes]
                    self._add(block, lambda *own: EnterTogether.apply(group, *own), *parameters)
            elif where in ("heads", "columns") and moves.transitions[block].readers == ("part",):
                # the bias of the linear layer that ends the block
                self._add(block, lambda bias: f(bias, group), torch.randn(hidden))

    def _add(self, block: str, forward: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> None:
        inputs = [x.requires_grad_() for x in inputs]
        self.work.append((self.kinds[block], BothWays(lambda: forward(*inputs), inputs)))

    def __call__(self, calls: int = 3) -> dict[str, tuple[float, float]]:
        """Block of ``simulator.predict.shares`` -> seconds of one such block: (in forward, in backward)."""
        kinds = list(self.kinds.values())
        total = dict.fromkeys(kinds, (0.0, 0.0))
        for kind, work in self.work:
            total[kind] = tuple(map(add, total[kind], work.seconds(calls, 0.0)))
        return {kind: tuple(s / kinds.count(kind) for s in both) for kind, both in total.items()}
