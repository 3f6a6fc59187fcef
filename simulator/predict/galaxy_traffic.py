"""What hybrid layers send (``simulator/inputs/galaxy.py``), to the byte: between blocks, and for gradients.

An all-reduce, and an all-gather or reduce-scatter of equal parts, are PyTorch's. They count as the mean over the ranks.
Unequal parts go around a ring of sends, and each rank sends all parts but one: in an all-gather the part of its right
neighbour, in a reduce-scatter its own part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.inputs.checks import at_least, index, one_of, yes_or_no
from simulator.inputs.galaxy import (
    POST_NORM,
    PRE_NORM,
    STEPS,
    Transition,
    deal_shares,
    placement_of_blocks,
    transitions,
)
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
    post_norm: bool = True,
    backward: bool = True,
) -> Traffic:
    """All layers of a model on one batch, forward and backward, as rank ``rank`` sends it.

    Args:
        placement: a name of ``WAYS``, or a placement for each block.
        heads, columns, sequence: the ranks' shares; None: as even as possible.
        batch: sequences, of ``shape.sequence`` tokens each.
        post_norm: norms stand behind the residual sums (BERT), otherwise before the blocks (LLaMA).
        backward: False counts forward alone, as in inference.
    """
    at_least(1, ranks=ranks, batch=batch, itemsize=itemsize)
    index(ranks, rank=rank)
    yes_or_no(post_norm=post_norm, backward=backward)
    placed = placement_of_blocks(placement)
    given = {"heads": heads, "columns": columns, "sequence": sequence}
    shares = deal_shares(ranks, shape.heads, shape.ffn, given, group=shape.heads // shape.kv_heads)
    lengths, readers = shares.tokens(shape.sequence), POST_NORM if post_norm else PRE_NORM
    total = Traffic()
    for layer in range(shape.layers):
        for block, transition in transitions(placed, readers, first=layer == 0).items():
            if block == "connection_2" and layer < shape.layers - 1:
                continue  # the next layer's input
            width = 2 * shape.kv_heads * shape.head_size if block == "keys" else shape.hidden
            for step in steps_of(transition, backward):
                total += step_traffic(step, lengths, batch * width * itemsize, rank)
    sizes = summed_gradients(shape, placed) if backward else []
    return total + ddp_traffic(sizes * shape.layers, ranks, itemsize)


def steps_of(transition: Transition, backward: bool = True) -> tuple[str, ...]:
    """The steps of forward, and those of backward behind them."""
    return transition.forward + (transition.backward if backward else ())


def step_traffic(step: str, lengths: Sequence[int], bytes_of_token: int, rank: int) -> Traffic:
    """One step between two blocks.

    Args:
        step: a name of ``simulator.inputs.galaxy.STEPS``.
        lengths: the tokens of each rank.
        bytes_of_token: what one token takes on the wire, in all sequences of the batch.
    """
    one_of("step", step, STEPS.values())
    at_least(1, bytes_of_token=bytes_of_token)
    ranks = len(lengths)
    index(ranks, rank=rank)
    for length in lengths:
        at_least(0, lengths=length)
    if ranks == 1 or step == "split":
        return Traffic()
    if step == "all-reduce" or len(set(lengths)) == 1:
        return calls(step, [sum(lengths)], bytes_of_token, ranks)
    kept = (rank + 1) % ranks if step == "all-gather" else rank
    messages = [length for other, length in enumerate(lengths) if other != kept and length]
    size = bytes_of_token * sum(messages)
    return Traffic([TrafficRow("send", 2, len(messages), size, size)] if messages else [])


def summed_gradients(shape: ModelShape, placement: str | Mapping[str, str]) -> list[int]:
    """The gradients of one layer that are summed over the ranks: elements of each message.

    A rank that has whole matrices and works on its own tokens computes a part of their gradient. So the gradients of a
    block with the placement "sequence" are summed: one message for each linear layer, and one for each norm. The bias
    behind a block that is cut belongs to the connection.
    """
    placed = placement_of_blocks(placement)
    h, width, kv_width = shape.hidden, shape.attention_width, shape.kv_heads * shape.head_size
    up = shape.expert_parameters() - _linear(shape, shape.ffn, h)
    matrices = 2 if shape.activation == "swiglu" else 1
    blocks = {
        "attention": [_linear(shape, h, n) for n in (width, kv_width, kv_width)] + [_linear(shape, width, h)],
        "mlp": [up // matrices] * matrices + [_linear(shape, shape.ffn, h)],
    }
    sizes = []
    for (block, matrices_of_block), connection in zip(
        blocks.items(), ("connection_1", "connection_2"), strict=True
    ):
        if placed[block] == "sequence":
            sizes += matrices_of_block
        if placed[connection] == "sequence":
            cut = placed[block] in ("heads", "columns")
            sizes += [h] * (cut and shape.biases) + [shape.norm_parameters]
    return sizes


def _linear(shape: ModelShape, inputs: int, outputs: int) -> int:
    return inputs * outputs + (outputs if shape.biases else 0)
