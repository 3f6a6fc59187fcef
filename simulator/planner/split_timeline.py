"""A split of a layer on a time axis: what each rank computes, and where it waits for the others."""

from __future__ import annotations

from collections import Counter

from simulator.inputs.galaxy import transitions
from simulator.ledgers.timeline import Span, Timeline
from simulator.planner.layer_split import LayerSplit
from simulator.predict.galaxy_traffic import steps_of
from simulator.predict.placed_messages import GRADIENTS, KEYS


def split_timeline(split: LayerSplit, layer: str = "post-norm") -> Timeline:
    """One layer between two others, block by block. A box is the forward and the backward of a block together.

    A message begins when the slowest rank has ended the block before it. Blocks without a message between them follow
    each other on each rank.

    Args:
        layer: the kind of layer, as it was given to the planner.
    """
    messages = {block: list(steps_of(t)) for block, t in transitions(split.placement, layer).items()}
    for norm, before in (
        ("norm_1", "input"),
        ("norm_2", "connection_1"),
    ):  # of a layer with norms before its blocks
        messages[before] += messages.pop(norm, [])
    messages["attention"] = [KEYS] * len(messages.pop("keys", ())) + messages["attention"]
    messages["connection_2"] = [GRADIENTS] if GRADIENTS in split.communication else []
    calls = Counter(step for steps in messages.values() for step in steps)
    ends, spans = [0.0] * len(split.busy), []

    def send(block: str) -> None:
        for step in messages[block]:
            if step in split.communication:
                start = max(ends)
                end = start + split.communication[step] / calls[step]
                spans.extend(
                    Span(rank, "communication", NAMES.get(step, step), start, end)
                    for rank in range(len(ends))
                )
                ends[:] = [end] * len(ends)

    send("input")
    for number, (block, seconds) in enumerate(split.compute.items(), start=1):
        for rank, duration in enumerate(seconds):
            if duration:
                name = f"forward + backward of block {number}"
                spans.append(Span(rank, "compute", name, ends[rank], ends[rank] + duration))
                ends[rank] += duration
        send(block)
    return Timeline(spans)


NAMES = {KEYS: "all-gather of keys and values", GRADIENTS: "all-reduce of gradients"}
