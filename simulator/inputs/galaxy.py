"""Hybrid layers (Galaxy, arXiv:2405.17245): each block of a transformer layer has a placement of its own.

The blocks of a BERT layer are attention, connection 1 (dropout, residual sum, norm), MLP and connection 2. A tensor
between two blocks has one of three layouts on the ranks:

    whole    every rank has the whole tensor
    part     each rank has the part of the sequence that is its own
    sum      each rank has one addend, as large as the whole tensor, which is the sum of all addends

A placement says in which layout a block reads its input, and in which layout its result comes out. In backward it
says in which layout the gradient of the input comes out, and in which one the gradient of the result is read:

    placement            input    result    gradient of the input    gradient of the result
    whole                whole    whole     whole                    whole
    heads, columns       whole    sum       sum                      whole
    sequence             part     part      part                     part

What the ranks send between two blocks follows from this table: ``transitions``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.inputs.checks import at_least, one_of
from simulator.inputs.chunks import chunk_sizes, proportional_chunks

# placement: the layouts of input, result, gradient of the input, gradient of the result
PLACEMENTS = {
    "whole": ("whole", "whole", "whole", "whole"),
    "heads": ("whole", "sum", "sum", "whole"),
    "columns": ("whole", "sum", "sum", "whole"),
    "sequence": ("part", "part", "part", "part"),
}

# block: the placements that it can have
BLOCKS = {
    "attention": ("heads", "sequence", "whole"),
    "connection_1": ("sequence", "whole"),
    "mlp": ("columns", "sequence", "whole"),
    "connection_2": ("sequence", "whole"),
}

# the four ways: in the order of BLOCKS, the placement of each block
_ROWS = {
    "tp": ("heads", "whole", "columns", "whole"),
    "sp": ("sequence", "sequence", "sequence", "sequence"),
    "galaxy": ("heads", "sequence", "columns", "sequence"),
    "galaxy2": ("heads", "sequence", "sequence", "sequence"),
}
WAYS = {way: dict(zip(BLOCKS, row, strict=True)) for way, row in _ROWS.items()}

# How a tensor gets from one layout to another one. Only "split" sends nothing.
STEPS = {
    ("sum", "whole"): "all-reduce",
    ("sum", "part"): "reduce-scatter",
    ("part", "whole"): "all-gather",
    ("whole", "part"): "split",
}

# For each kind of layer: which blocks read a block's result. "input" is what enters the layer, "output" what reads the
# last layer's result.
POST_NORM = {  # BERT
    "input": ("attention", "connection_1"),
    "attention": ("connection_1",),
    "connection_1": ("mlp", "connection_2"),
    "mlp": ("connection_2",),
    "connection_2": ("output",),
}
PRE_NORM = {  # GPT and LLaMA: norm_2 belongs to connection 1, and norm_1 to connection 2 of the layer before
    "input": ("norm_1", "connection_1"),
    "norm_1": ("attention",),
    "attention": ("connection_1",),
    "connection_1": ("norm_2", "connection_2"),
    "norm_2": ("mlp",),
    "mlp": ("connection_2",),
    "connection_2": ("output",),
}
ENCODER = POST_NORM | {"connection_2": ("memory",)}  # BART: the decoder reads the last layer's result
DECODER = {  # BART: cross attention is placed as attention is, and the connection behind it as connection 1 is
    "input": ("attention", "connection_1"),
    "attention": ("connection_1",),
    "connection_1": ("cross_attention", "cross_connection"),
    "cross_attention": ("cross_connection",),
    "cross_connection": ("mlp", "connection_2"),
    "mlp": ("connection_2",),
    "connection_2": ("output",),
}
LAYERS = {"post-norm": POST_NORM, "pre-norm": PRE_NORM, "encoder": ENCODER, "decoder": DECODER}
_PLACED_WITH = {
    "norm_1": "connection_2",
    "norm_2": "connection_1",
    "cross_attention": "attention",
    "cross_connection": "connection_1",
    "input": "connection_2",
}


@dataclass(frozen=True)
class Transition:
    """What happens between a block and the blocks that read its result.

    Args:
        result: the layout in which the result comes out; ``gradient`` the one in which its gradient is read.
        readers: for each block that reads the result, the layout in which it does so.
        gradients: for each of them, the layout in which its gradient of the input comes out.
    """

    result: str
    gradient: str
    readers: tuple[str, ...]
    gradients: tuple[str, ...]

    @property
    def forward(self) -> tuple[str, ...]:
        """The steps from the result to all that is read: names of ``STEPS``, none where nothing happens."""
        wanted = {layout for layout in self.readers if layout != self.result}
        if self.result == "sum" and len(wanted) == 2:
            return ("all-reduce", "split")  # one message: each rank takes its part of the whole sum
        return tuple(STEPS[self.result, layout] for layout in sorted(wanted))

    @property
    def backward(self) -> tuple[str, ...]:
        """The steps from the readers' gradients to the gradient of the result. The gradients are added on the way."""
        given = {layout for layout in self.gradients if layout != self.gradient}
        if self.gradient == "whole" and len(given) == 2:
            return ("all-reduce",)  # one message: a rank adds its part to its addend first
        return tuple(STEPS[layout, self.gradient] for layout in sorted(given))


def transitions(
    placement: str | Mapping[str, str], layer: str = "post-norm", first: bool = False, overlap: bool = False
) -> dict[str, Transition]:
    """For each block, what happens between its result and its readers; "keys" stands for keys and values.

    >>> {block: (t.forward, t.backward) for block, t in transitions("galaxy").items()}["connection_1"]
    (('all-gather',), ('reduce-scatter',))

    Args:
        placement: a name of ``WAYS``, or for each block of ``BLOCKS`` one of its placements.
        layer: a name of ``LAYERS``.
        first: this is the first layer, whose input is whole on every rank. The input of any other layer is the
            result of connection 2. What reads the result of the last layer needs it whole.
        overlap: the all-gather before the MLP goes on inside the MLP, tile by tile: "tiles".

    Raises:
        ValueError: a wrong placement or layer; an overlap where no all-gather stands before the MLP.
    """
    one_of("layer", layer, LAYERS)
    placed = placements_of(placement) | {"output": "whole"}
    # Keys and values of the memory are computed from the whole memory, for this rank's heads or for its queries.
    placed["memory"] = "whole" if placed["attention"] == "whole" else "heads"
    if first:
        placed["input"] = "whole"
    found = {}
    if overlap:
        if (placed["connection_1"], placed["mlp"]) != ("sequence", "columns"):
            raise ValueError(
                "overlap: no all-gather stands before the MLP, unless connection_1 is placed by sequence and mlp by "
                "columns"
            )
        found["tiles"] = GATHERED_INSIDE
    for block, its_readers in LAYERS[layer].items():
        inside = {"mlp"} if overlap else set()
        inputs = [PLACEMENTS["sequence" if reader in inside else placed[reader]] for reader in its_readers]
        _, result, _, gradient = PLACEMENTS[placed[block]]
        found[block] = Transition(result, gradient, tuple(i[0] for i in inputs), tuple(i[2] for i in inputs))
    if placed["attention"] == "sequence":
        found["keys"] = GATHERED_INSIDE
    return found


# What a block gathers by itself: in attention, the queries of a rank's tokens read all keys and values. Each rank then
# has an addend of their gradient.
GATHERED_INSIDE = Transition("part", "part", ("whole",), ("sum",))


def placements_of(placement: str | Mapping[str, str]) -> dict[str, str]:
    """The placement of every block of every kind of layer, from that of the four ``BLOCKS``."""
    placed = placement_of_blocks(placement)
    return placed | {block: placed[other] for block, other in _PLACED_WITH.items()}


def placement_of_blocks(placement: str | Mapping[str, str]) -> dict[str, str]:
    """One of the four ways by its name, or a mix of one's own, checked.

    Raises:
        ValueError: an unknown way or block, a block without a placement, a placement that a block cannot have.
    """
    if isinstance(placement, str):
        one_of("placement", placement, WAYS)
        return dict(WAYS[placement])
    for block, its_placement in placement.items():
        one_of("a block of the placement", block, BLOCKS)
        one_of(f"the placement of {block}", its_placement, BLOCKS[block])
    for block, accepted in BLOCKS.items():
        if block not in placement:
            raise ValueError(f"{block} has no placement: choose one of {', '.join(accepted)}")
    return dict(placement)


@dataclass(frozen=True)
class Shares:
    """How much of a layer each rank has: heads, MLP columns, and a share of the sequence. A rank may have none.

    Attributes:
        heads, columns: one number a rank.
        sequence: one number a rank; the tokens of a sequence are dealt in this proportion.
    """

    heads: tuple[int, ...]
    columns: tuple[int, ...]
    sequence: tuple[int, ...]

    def tokens(self, length: int) -> tuple[int, ...]:
        """The tokens of each rank, of a sequence of ``length``.

        Raises:
            ValueError: fewer tokens than ranks that have a share.
        """
        at_least(0, length=length)
        sharing = sum(share > 0 for share in self.sequence)
        if length < sharing:
            raise ValueError(
                f"sequence: {sharing} ranks cannot share {length} tokens: give longer sequences, or 0 to some ranks"
            )
        return tuple(proportional_chunks(length, self.sequence))


def deal_shares(
    ranks: int,
    heads: int,
    columns: int,
    given: Mapping[str, Sequence[int] | None] | None = None,
    *,
    group: int = 1,
) -> Shares:
    """The shares as given, checked; those that are not given are as even as possible, the larger ones first.

    Args:
        heads, columns: those of the whole layer.
        given: ``"heads"``, ``"columns"`` and ``"sequence"``, each one number a rank.
        group: query heads that share one head of keys and values. They stay on one rank.

    Raises:
        ValueError: an unknown key; a list of another length than ``ranks``, that does not add up, or that cuts
            through a group of heads.
    """
    at_least(1, ranks=ranks, heads=heads, columns=columns, group=group)
    wholes = {"heads": heads, "columns": columns, "sequence": None}
    named = {key: shares for key, shares in (given or {}).items() if shares is not None}
    for key in named:
        one_of("a share", key, wholes)
    checked = {key: _checked(key, shares, ranks, wholes[key]) for key, shares in named.items()}
    for share in checked.get("heads", ()):
        if share % group:
            raise ValueError(
                f"heads: {group} query heads share one head of keys and values, so each rank needs a multiple of "
                f"{group}, not {share}"
            )
    return Shares(
        checked.get("heads") or tuple(group * n for n in chunk_sizes(heads // group, ranks)),
        checked.get("columns") or tuple(chunk_sizes(columns, ranks)),
        checked.get("sequence") or (1,) * ranks,
    )


def _checked(key: str, shares: Sequence[int], ranks: int, whole: int | None) -> tuple[int, ...]:
    numbers = not isinstance(shares, str) and hasattr(shares, "__len__") and len(shares) == ranks
    numbers = numbers and all(type(share) is int and share >= 0 for share in shares)
    if not numbers or sum(shares) == 0 or (whole is not None and sum(shares) != whole):
        total = "of which one is more than 0" if whole is None else f"that add up to {whole}"
        raise ValueError(f"{key} must be {ranks} whole numbers, one a rank, {total}, not {shares}")
    return tuple(shares)
