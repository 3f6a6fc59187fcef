"""Hybrid layers (Galaxy, arXiv:2405.17245): tensor and sequence parallelism in one layer, with unequal shares.

A table gives each block of a layer a placement, such as "attention: heads, connection 1: sequence".
``simulator/inputs/galaxy.py`` holds this table for four ways (TP, SP, Galaxy, Galaxy2), and derives from it the
``Transition`` between two blocks. This file executes a transition, forward and backward, and gives each block of a
plain model its placement. (The paper only runs forward.)

Shapes in comments: ``seq`` tokens, of which this rank has ``seq_i``.

>>> apply_galaxy(model, mesh["tp"], "galaxy", heads=[5, 3], sequence=[5, 3])                # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from course_lib.tensor_parallel.apply import _start_equal, enter_in_parts
from course_lib.tensor_parallel.galaxy_family import Forward
from course_lib.tensor_parallel.galaxy_layers import stacks_of
from course_lib.tensor_parallel.galaxy_modules import check_overlap, place_layer, styles_of
from course_lib.tensor_parallel.gather_and_multiply import gather_and_multiply
from course_lib.tensor_parallel.layers import sum_over_ranks
from course_lib.tensor_parallel.unequal_parts import gather_parts, own_part, sum_to_parts
from simulator.inputs.galaxy import (
    STEPS,
    Transition,
    deal_shares,
    placements_of,
    transitions,
)


class Move(torch.autograd.Function):
    """A block's result to what each of its readers reads; in backward, the readers' gradients to that of the result.

    A transition names a layout for each of them: "whole" is ``(batch, seq, hidden)``, "part" is
    ``(batch, seq_i, hidden)``, and "sum" is an addend of the whole.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, transition: Transition, lengths: Sequence[int], group: ProcessGroup
    ) -> tuple[Tensor, ...]:
        ctx.transition, ctx.lengths, ctx.group = transition, lengths, group
        known = {transition.result: x}
        for layout in ("whole", "part"):  # this order, because a part of the whole costs no message
            if layout in transition.readers and layout not in known:
                source = "whole" if "whole" in known else transition.result
                known[layout] = convert(known[source], source, layout, lengths, group)
        return tuple(known[layout].view_as(known[layout]) for layout in transition.readers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        transition, lengths, group = ctx.transition, ctx.lengths, ctx.group
        total: dict[str, Tensor] = {}
        for layout, gradient in zip(transition.gradients, gradients, strict=True):
            total[layout] = total[layout] + gradient if layout in total else gradient
        if transition.gradient == "whole" and {"sum", "part"} <= total.keys():
            total["sum"] = total["sum"].clone()  # this rank's part becomes a part of its addend: no message
            own_part(total["sum"], lengths, group).add_(total.pop("part"))
        wanted = [convert(g, layout, transition.gradient, lengths, group) for layout, g in total.items()]
        return sum(wanted[1:], wanted[0]), None, None, None


def convert(x: Tensor, layout: str, wanted: str, lengths: Sequence[int], group: ProcessGroup) -> Tensor:
    """A tensor in one layout to the same tensor in another one."""
    match STEPS.get((layout, wanted)):
        case "all-reduce":
            return sum_over_ranks(x, group, "all-reduce")
        case "reduce-scatter":
            return sum_to_parts(x, lengths, group)  # (batch, seq, hidden) to (batch, seq_i, hidden)
        case "all-gather":
            return gather_parts(x, lengths, group)  # (batch, seq_i, hidden) to (batch, seq, hidden)
        case "split":
            return own_part(x, lengths, group).contiguous()
    return x


class Moves:
    """The transitions of one layer. A layer's forward calls ``moves("attention", x)`` where attention has ended.

    Attributes:
        lengths: the tokens of each rank, of the sequences that are under way.
    """

    def __init__(
        self,
        placement: str | Mapping[str, str],
        kind: str,
        mesh: DeviceMesh,
        first: bool,
        overlap: bool = False,
    ) -> None:
        self.placed, self.group = placements_of(placement), mesh.get_group()
        self.transitions = transitions(placement, kind, first, overlap)
        self.lengths: Sequence[int] = ()

    def __call__(self, block: str, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """For each reader of the block, the tensor that it reads; a single one not in a tuple."""
        transition = self.transitions[block]
        if self.group.size() == 1:
            moved = (x,) * len(transition.readers)
        else:
            moved = Move.apply(x, transition, self.lengths, self.group)
        return moved if len(moved) > 1 else moved[0]

    def multiply_tiles(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``F.linear`` of all ranks' tokens. x holds this rank's; the others come while tiles are multiplied."""
        return gather_and_multiply(self.lengths, self.group, x, weight, bias)

    def own_range(self) -> tuple[int, int]:
        """Where this rank's tokens begin in the sequence, and how many there are."""
        rank = self.group.rank()
        return sum(self.lengths[:rank]), self.lengths[rank]


def apply_galaxy(
    model: nn.Module,
    mesh: DeviceMesh,
    placement: str | Mapping[str, str] = "galaxy",
    *,
    heads: Sequence[int] | None = None,
    columns: Sequence[int] | None = None,
    sequence: Sequence[int] | None = None,
    overlap: bool = False,
) -> nn.Module:
    """Place the blocks of each layer of ``model`` on the ranks of ``mesh``, in place, and return it.

    Every rank must get the same batch. What is no layer (embeddings, pooler, head) is whole on every rank, and so are
    the results, so the loss is that of one device. Every rank starts with the values of the mesh's first rank. Names
    stay as they are; a parameter that is cut is as wide as this rank's share. Make optimizers afterwards, clip with
    ``gradient_norm.clip_grad_norm_``, and gather with ``full_tensors``.

    Args:
        mesh: one axis.
        placement: ``"tp"``, ``"sp"``, ``"galaxy"`` or ``"galaxy2"``, or for each block one of its placements
            (``simulator.inputs.galaxy.BLOCKS``).
        heads, columns: how many attention heads and MLP columns each rank has; they add up to those of the model.
        sequence: one number a rank. The tokens of a sequence are dealt in this proportion. None, for each of the
            three: as evenly as possible, the first ranks one more. A rank may have 0.
        overlap: gather the input of the MLP tile by tile, while its first linear layer multiplies (BERT and BART,
            where connection 1 is placed by sequence and the MLP by columns; ``gather_and_multiply.py``).

    Raises:
        ValueError: a placement, a share or the overlap cannot be used; the model is as it was. In forward: a sequence
            has fewer tokens than there are ranks with a share of it.
    """
    if mesh.ndim != 1:
        raise ValueError(f'the mesh must have one axis, such as mesh["tp"], not {mesh.ndim}')
    placed, stacks = placements_of(placement), stacks_of(model)
    given = {"heads": heads, "columns": columns, "sequence": sequence}
    shares = [deal_shares(mesh.size(), s.heads, s.columns, given, group=s.group) for s in stacks]
    styles = [styles_of(model, stack, placed) for stack in stacks]
    if overlap:
        check_overlap(stacks, placement)
    _start_equal(model, mesh)
    enter_in_parts(model, mesh)
    for stack, its_shares, its_styles in zip(stacks, shares, styles, strict=True):
        family = stack.family
        for number, (name, layer) in enumerate(stack.layers.items()):
            moves = Moves(placement, family.kind, mesh, number == 0, overlap)
            place_layer(model, name, family, its_shares, its_styles, moves, mesh)
            if overlap:
                layer.get_submodule(family.entry).multiply = moves.multiply_tiles
            layer.forward = partial(_layer_forward, layer, family.layer_forward, moves)
        end = partial(moves, "connection_2")  # the result of the last layer, as what follows reads it
        stack.module.forward = partial(family.stack_forward, stack.module, its_shares, end)
    return model


def _layer_forward(
    layer: nn.Module,
    forward: Forward,
    moves: Moves,
    x: Tensor,
    *inputs: Any,
    lengths: Sequence[int],
    **named: Any,
) -> Tensor:
    moves.lengths = lengths
    return forward(layer, moves, x, *inputs, **named)
