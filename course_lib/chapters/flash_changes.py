"""A by-hand file with one line changed (chapters 07, 15 and 16), and what a change of FlashAttention moves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.observe.ledgers.saved import saved_tensors


def changed(by_hand: ModuleType, old: str, new: str) -> ModuleType:
    """A by-hand file as a module of its own, run from its source with ``new`` in the place of ``old``.

    Raises:
        ValueError: ``old`` does not stand in the source exactly once.
    """
    source = inspect.getsource(by_hand)
    if source.count(old) != 1:
        raise ValueError(f"{old!r} stands in the by-hand file {source.count(old)} times, and must stand once")
    mine = ModuleType(f"{by_hand.__name__} (changed)")
    # The file's annotations stay values, as a dataclass in it needs them: this file's own are strings.
    exec(compile(source.replace(old, new), mine.__name__, "exec", dont_inherit=True), vars(mine))
    return mine


class Apply(nn.Module):
    """A function of q, k, v as a module, for the ledgers that watch modules."""

    def __init__(self, attention: Callable[..., Tensor]) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attention(q, k, v)


def kept_bytes(attention: Callable[..., Tensor], *shape: int, **like: Any) -> int:
    """What autograd keeps for backward: q, k and v have this shape, in fp32 or as ``torch.empty`` is told."""
    q, k, v = (torch.empty(shape, **like) for _ in range(3))
    return sum(t.bytes for t in saved_tensors(Apply(attention), q, k, v))


def wrong_by(
    attention: Callable[..., Tensor], right: Callable[..., Tensor], tokens: int = 128, scale: float = 1
) -> float:
    """The largest error of the output, beside the ``right`` attention; scores are about ``scale``."""
    q, k, v = torch.randn(3, tokens, 64, generator=torch.Generator().manual_seed(0))
    q *= scale / 8
    return (attention(q, k, v) - right(q, k, v)).abs().max().item()


def using(function: FunctionType, **names: Any) -> FunctionType:
    """The function once more, which finds these under their names in the place of its file's own."""
    own = {**function.__globals__, **names}
    return FunctionType(function.__code__, own, function.__name__, function.__defaults__)


class Kernels(TorchDispatchMode):
    """What runs inside, as if each operator were a kernel that reads its inputs from slow memory and writes its result.

    Attributes:
        names: of the operators, in order. One that returns a view moves nothing and is left out.
        bytes: read and written by all of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        read, made = (
            [t for t in tree_leaves(tree) if isinstance(t, Tensor)] for tree in ((args, kwargs), out)
        )
        inputs = {t.untyped_storage().data_ptr() for t in read}
        if not any(t.untyped_storage().data_ptr() in inputs for t in made):
            self.names.append(func.overloadpacket.__name__)
            self.bytes += sum(t.nbytes for t in read + made)
        return out


def fault_of_tiles(
    tile_again: Callable[[Tensor, Tensor], object], q: Tensor, k: Tensor, L: Tensor, keys: int = 16
) -> str:
    """What is wrong with weights that a function computes tile by tile from scores and L; nothing if all are right."""
    for more in (0, 100):  # added to every score it changes no weight
        tiles = []
        for K in k.split(keys):
            S = q @ K.mT + more
            try:
                P = tile_again(S, L + more)
            except Exception as error:
                return f"Your line stopped, with S {tuple(S.shape)} and L {tuple(L.shape)}: {error}"
            if not isinstance(P, Tensor) or P.shape != S.shape:
                found = tuple(P.shape) if isinstance(P, Tensor) else type(P).__name__
                return f"A tile of scores {tuple(S.shape)} needs as many weights; yours: {found}."
            tiles.append(P)
        P = torch.cat(tiles, -1)
        total = f"{P.sum(-1).mean():.2f}"
        if torch.allclose(P, (q @ k.mT).softmax(-1), atol=1e-5):
            continue
        if more:
            return f"Every weight is right. But add {more} to all scores, and P sums to {total}: exp(S) overflows."
        if total != "1.00":
            return f"Over the {len(tiles)} tiles of a row P sums to {total}, and should sum to 1."
        return "P sums to 1.00, but the weights are not standard's: a tile with larger scores weighs more."
    return ""
