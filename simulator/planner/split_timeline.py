"""A split of a layer on a time axis: what each rank computes, and where it waits for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from simulator.inputs.galaxy import transitions
from simulator.ledgers.timeline import Span, Timeline
from simulator.planner.layer_split import LayerSplit
from simulator.predict.placed_messages import GRADIENTS, KEYS

# Block -> what is sent in front of it in forward. A norm in front of a block belongs to the connection before it.
IN_FRONT = {
    "attention": ("input", "norm_1", "keys"),
    "connection_1": ("attention",),
    "mlp": ("connection_1", "norm_2"),
    "connection_2": ("mlp",),
}


def split_timeline(split: LayerSplit, layer: str = "post-norm") -> Timeline:
    """One layer between two others: its blocks in forward, and then in backward, where the last block is the first.

    A message begins when the slowest rank has ended the block before it. Blocks without a message between them follow
    each other on each rank. Between forward and backward the layers behind this one run, which are not drawn. After
    them all ranks begin backward at the same time.

    Args:
        layer: the kind of layer, as it was given to the planner.
    """
    moves = transitions(split.placement, layer)
    ahead, back = {}, {}  # block -> (kind of message, step) of what is sent in front of it
    for block, names in IN_FRONT.items():
        there = [name for name in names if name in moves]
        ahead[block] = [(_kind(name, step), step) for name in there for step in moves[name].forward]
        back[block] = [(_kind(name, step), step) for name in there[::-1] for step in moves[name].backward]
    back["attention"].append((GRADIENTS, "all-reduce"))
    calls = Counter(kind for messages in (*ahead.values(), *back.values()) for kind, _ in messages)
    ends, spans = [0.0] * len(split.busy), []

    def compute(name: str, seconds: Sequence[float]) -> None:
        for rank, duration in enumerate(seconds):
            if duration:
                spans.append(Span(rank, "compute", name, ends[rank], ends[rank] + duration))
                ends[rank] += duration

    def send(messages: Sequence[tuple[str, str]]) -> None:
        for kind, step in messages:
            if kind in split.communication:  # a split sends nothing
                start = max(ends)
                end = start + split.communication[kind] / calls[kind]
                name = step if kind == step else f"{step} of {kind}"
                spans.extend(Span(rank, "communication", name, start, end) for rank in range(len(ends)))
                ends[:] = [end] * len(ends)

    blocks = list(enumerate(split.placement, start=1))
    for number, block in blocks:
        send(ahead[block])
        compute(f"forward of block {number}", split.forward[block])
    ends[:] = [max(ends)] * len(ends)
    for number, block in blocks[::-1]:
        compute(f"backward of block {number}", split.backward[block])
        send(back[block])
    return Timeline(spans)


def _kind(name: str, step: str) -> str:
    return KEYS if name == "keys" else step
