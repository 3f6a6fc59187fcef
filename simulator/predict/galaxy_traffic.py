"""What hybrid layers send (``simulator/inputs/galaxy.py``), to the byte: between blocks, and for gradients.

An all-reduce, and an all-gather or reduce-scatter of equal parts, are PyTorch's. They count as the mean over the ranks.
Unequal parts go around a ring of sends, and each rank sends all parts but one: in an all-gather the part of its right
neighbour, in a reduce-scatter its own part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.inputs.checks import at_least, index, one_of, yes_or_no
from simulator.inputs.galaxy import STEPS, Transition, deal_shares, placements_of, transitions
from simulator.inputs.shape import ModelShape
from simulator.ledgers.traffic import Traffic, TrafficRow
from simulator.predict.traffic import calls, ddp_traffic


def galaxy_traffic(
    shape: ModelShape,
    placement: str | Mapping[str, str],
    ranks: int,
    rank: int,
    *,
    heads: Sequence[int] | None = None,
    columns: Sequence[int] | None = None,
    sequence: Sequence[int] | None = None,
    batch: int = 1,
    itemsize: int = 4,
    layer: str = "post-norm",
    backward: bool = True,
    overlap: bool = False,
) -> Traffic:
    """All layers of a model on one batch, forward and backward, as rank ``rank`` sends it.

    Args:
        placement: a name of ``WAYS``, or a placement for each block.
        heads, columns, sequence: the ranks' shares; None: as even as possible.
        batch: sequences, of ``shape.sequence`` tokens each.
        layer: the kind of the layers, a name of ``simulator.inputs.galaxy.LAYERS``: norms behind the residual sums
            (BERT) or before the blocks (LLaMA); the two sides of BART, each with a shape of its own.
        backward: False counts forward alone, as in inference.
        overlap: the all-gather before the MLP goes around the ring in tiles, also where they are equal.
    """
    at_least(1, ranks=ranks, batch=batch, itemsize=itemsize)
    index(ranks, rank=rank)
    yes_or_no(backward=backward, overlap=overlap)
    given = {"heads": heads, "columns": columns, "sequence": sequence}
    shares = deal_shares(ranks, shape.heads, shape.ffn, given, group=shape.heads // shape.kv_heads)
    lengths = shares.tokens(shape.sequence)
    total = Traffic()
    for number in range(shape.layers):
        for block, transition in transitions(placement, layer, number == 0, overlap).items():
            if block == "connection_2" and number < shape.layers - 1:
                continue  # the next layer's input
            width = 2 * shape.kv_heads * shape.head_size if block == "keys" else shape.hidden
            for step in steps_of(transition, backward):
                total += step_traffic(step, lengths, batch * width * itemsize, rank, ring=block == "tiles")
    sizes = summed_gradients(shape, placement, layer) if backward else []
    return total + ddp_traffic(sizes * shape.layers, ranks, itemsize)


def steps_of(transition: Transition, backward: bool = True) -> tuple[str, ...]:
    """The steps of forward, and those of backward behind them."""
    return transition.forward + (transition.backward if backward else ())


def step_traffic(
    step: str, lengths: Sequence[int], bytes_of_token: int, rank: int, *, ring: bool = False
) -> Traffic:
    """One step between two blocks.

    Args:
        step: a name of ``simulator.inputs.galaxy.STEPS``.
        lengths: the tokens of each rank.
        bytes_of_token: what one token takes on the wire, in all sequences of the batch.
        ring: equal parts go around the ring of sends, too.
    """
    one_of("step", step, STEPS.values())
    at_least(1, bytes_of_token=bytes_of_token)
    ranks = len(lengths)
    index(ranks, rank=rank)
    for length in lengths:
        at_least(0, lengths=length)
    if ranks == 1 or step == "split":
        return Traffic()
    if step == "all-reduce" or (len(set(lengths)) == 1 and not ring):
        return calls(step, [sum(lengths)], bytes_of_token, ranks)
    kept = (rank + 1) % ranks if step == "all-gather" else rank
    messages = [length for other, length in enumerate(lengths) if other != kept and length]
    size = bytes_of_token * sum(messages)
    return Traffic([TrafficRow("send", 2, len(messages), size, size)] if messages else [])


def summed_gradients(
    shape: ModelShape, placement: str | Mapping[str, str], layer: str = "post-norm"
) -> list[int]:
    """The gradients of one layer that are summed over the ranks: elements of each message.

    A rank that has whole matrices and works on its own tokens computes a part of their gradient. So the gradients of a
    block with the placement "sequence" are summed: one message for each linear layer, and one for each norm. The bias
    behind a block that is cut belongs to the connection.
    """
    placed = placements_of(placement)
    h, width, kv_width = shape.hidden, shape.attention_width, shape.kv_heads * shape.head_size
    attention = [(h, width), (h, kv_width), (h, kv_width), (width, h)]
    mlp = [(h, shape.ffn)] * (2 if shape.activation == "swiglu" else 1) + [(shape.ffn, h)]
    blocks = [("attention", attention, "connection_1"), ("mlp", mlp, "connection_2")]
    if layer == "decoder":
        blocks.append(("cross_attention", attention, "cross_connection"))
    sizes = []
    for block, matrices, connection in blocks:
        if placed[block] == "sequence":
            sizes += [rows * columns + columns * shape.biases for rows, columns in matrices]
        if placed[connection] == "sequence":
            cut = placed[block] in ("heads", "columns")
            sizes += [h] * (cut and shape.biases) + [shape.norm_parameters]
    return sizes
