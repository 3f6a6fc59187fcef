"""The modules of a block get the block's placement: cut by heads or columns, or whole for this rank's own tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.attention.drop_in import CAUSAL
from course_lib.models.masks import causal_mask
from course_lib.models.names import replace_module
from course_lib.tensor_parallel.apply import _styles
from course_lib.tensor_parallel.galaxy_family import Family, Moves
from course_lib.tensor_parallel.galaxy_layers import Stack
from course_lib.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear, f
from course_lib.tensor_parallel.random_state import use_own_random_state
from course_lib.tensor_parallel.sequence import work_on_shard
from course_lib.tensor_parallel.shard import Shard
from simulator.inputs.galaxy import Shares, transitions

CUT = ("heads", "columns")  # placements that give a rank a part of each matrix
# the styles of ``apply.py`` for modules with parameters inside such a block
CUT_STYLES = ("heads", "kv heads", "column", "copied", "row", "sequence", "part")


def styles_of(model: nn.Module, stack: Stack, placed: Mapping[str, str]) -> dict[str, str]:
    """For the name of each module in a block that is cut, its style of ``apply.py``.

    Raises:
        ValueError: such a module has parameters, and no style says how to cut them.
    """
    cut = {
        f"{name}.{inner}": module
        for name, layer in stack.layers.items()
        for inner, module in layer.named_modules()
        if placed.get(stack.family.block_of(inner)) in CUT
    }
    styles = _styles(model, stack.styles) if cut else {}
    for name, module in cut.items():
        if styles.get(name) not in CUT_STYLES and next(module.parameters(recurse=False), None) is not None:
            raise ValueError(f"{name} has parameters, and no table says how to cut them by heads or columns")
    return {name: style for name, style in styles.items() if name in cut}


def check_overlap(stacks: Iterable[Stack], placement: str | Mapping[str, str]) -> None:
    """Refuse an overlap where there is nothing to gather before the MLP, or no single linear layer to multiply with."""
    for stack in stacks:
        transitions(placement, stack.family.kind, overlap=True)
        for name, layer in stack.layers.items():
            entry = stack.family.entry and layer.get_submodule(stack.family.entry)
            if type(entry) is not nn.Linear:
                raise ValueError(f"overlap: the MLP of {name} does not begin with one plain linear layer")


def place_layer(
    model: nn.Module,
    name: str,
    family: Family,
    shares: Shares,
    styles: Mapping[str, str],
    moves: Moves,
    mesh: DeviceMesh,
) -> None:
    """Give every module of the layer the placement of its block.

    Args:
        styles: those of ``styles_of``.
        moves: executes the transitions of this layer.
    """
    layer, placed = model.get_submodule(name), moves.placed
    for inner, module in list(layer.named_modules()):
        block, full = family.block_of(inner), f"{name}.{inner}"
        if block is None:
            continue
        own_tokens, part_leaves = placed[block] == "sequence", moves.transitions[block].readers == ("part",)
        ends_block = f"{family.exits.get(block)}.".startswith(f"{inner}.")  # its result is the block's
        if part_leaves if ends_block else own_tokens:
            work_behind_hooks(module, mesh)
        if placed[block] in CUT:
            dealt = shares.columns if block == "mlp" else shares.heads
            cut_module(model, full, styles.get(full), dealt, mesh, partial(moves, block), part_leaves)
        elif own_tokens:
            work_on_own_tokens(module, mesh)
            if inner.endswith(".core"):
                use_own_random_state(module, mesh)
                if block == "attention":  # cross attention has the keys of the whole memory
                    attend_to_all_keys(module, moves)
    for block, inner in family.exits.items():
        if placed[block] not in CUT:
            leave = partial(_on_result, moves, block)
            # before the hooks of an adapter, which belongs to the next block
            layer.get_submodule(inner).register_forward_hook(leave, prepend=True)


def _on_result(moves: Moves, block: str, _module: nn.Module, _inputs: Any, x: Tensor) -> Tensor:
    return moves(block, x)


class PlacedRowLinear(RowParallelLinear):
    """``(batch, seq, in_i)`` to what the next block reads: the whole sum, or this rank's tokens of it.

    Args:
        leave: takes the addend, ``(batch, seq, out)``, to the layout that is wanted.
        own_tokens: the result has this rank's tokens only, so the bias gets a part of its gradient.
    """

    def __init__(
        self,
        linear: nn.Linear,
        mesh: DeviceMesh,
        shard: Shard,
        leave: Callable[[Tensor], Tensor],
        own_tokens: bool,
    ) -> None:
        super().__init__(linear, mesh, shard)
        self._leave, self.own_tokens = leave, own_tokens

    def leave(self, z: Tensor) -> Tensor:
        return self._leave(z)

    def replicated(self, bias: Tensor) -> Tensor:
        return f(bias, self.mesh.get_group()) if self.own_tokens else bias


def own_share(whole: int, shares: tuple[int, ...], mesh: DeviceMesh, *, dim: int = 0) -> Shard:
    """This rank's rows or columns of ``whole`` of them, dealt in the proportion of ``shares``."""
    rank, total = mesh.get_local_rank(), sum(shares)
    start, stop = (whole * sum(shares[:r]) // total for r in (rank, rank + 1))
    return Shard(dim, start, stop - start, whole)


def cut_module(
    model: nn.Module,
    name: str,
    style: str | None,
    shares: tuple[int, ...],
    mesh: DeviceMesh,
    leave: Callable[[Tensor], Tensor],
    own_tokens: bool,
) -> None:
    """A module of a block with the placement "heads" or "columns".

    Args:
        style: that of ``apply.py``.
        shares: heads or columns of each rank.
        leave, own_tokens: how a block ends, as in ``PlacedRowLinear``.
    """
    module = model.get_submodule(name)
    new: nn.Module | None = None
    match style:
        case "heads" | "kv heads" | "column":
            shard = own_share(module.out_features, shares, mesh)
            new = ColumnParallelLinear(module, mesh, shard)
        case "copied":
            shard = Shard(0, 0, module.out_features, module.out_features, copies=mesh.size())
            new = ColumnParallelLinear(module, mesh, shard)
        case "row":
            shard = own_share(module.in_features, shares, mesh, dim=1)
            new = PlacedRowLinear(module, mesh, shard, leave, own_tokens)
        case "part":
            work_on_shard(module, mesh)
        case "core":
            use_own_random_state(module, mesh)
        case "sequence" if own_tokens:  # B of LoRA, behind the end of the block
            work_on_own_tokens(module, mesh)
    if new is not None:
        new._forward_hooks, new._forward_pre_hooks = module._forward_hooks, module._forward_pre_hooks
        replace_module(model, name, new)


def work_on_own_tokens(module: nn.Module, mesh: DeviceMesh) -> None:
    """A module of its own, without those inside it: the gradients of its parameters are summed over the ranks, and
    what it drops differs by rank."""
    if any(p.requires_grad for p in module.parameters(recurse=False)):
        work_on_shard(module, mesh)
    if isinstance(module, nn.modules.dropout._DropoutNd):
        use_own_random_state(module, mesh)


def work_behind_hooks(module: nn.Module, mesh: DeviceMesh) -> None:
    """An adapter stands elsewhere in the model and changes this module's result in a hook: it gets the same tokens."""
    for hook in module._forward_hooks.values():
        adapter = getattr(hook, "__self__", None)
        for inner in adapter.modules() if isinstance(adapter, nn.Module) else ():
            work_on_own_tokens(inner, mesh)


def attend_to_all_keys(core: nn.Module, moves: Moves) -> None:
    """Let a core of attention gather the ranks' keys and values, for the queries of this rank's tokens."""
    causal = core.causal if hasattr(core, "causal") else CAUSAL[type(core)]
    core.forward = partial(_forward_with_all_keys, core.forward, moves, causal)


def _forward_with_all_keys(
    forward: Callable[..., Tensor],
    moves: Moves,
    causal: bool,
    q: Tensor,  # (batch, heads, seq_i, size)
    k: Tensor,  # (batch, kv_heads, seq_i, size)
    v: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    own = torch.cat((k, v), dim=-1).transpose(1, 2)  # one message for both
    every = moves("keys", own).transpose(1, 2)  # (batch, kv_heads, seq, 2 * size)
    k, v = every.split((k.shape[-1], v.shape[-1]), dim=-1)
    start, length = moves.own_range()
    if mask is None and causal:
        mask = causal_mask(k.shape[2], device=k.device)
    if mask is not None and mask.shape[-2] > 1:  # a row for each query
        mask = mask.narrow(-2, start, length)
    return forward(q, k, v, mask)
