"""How long the messages of a layer take whose blocks have placements, on ranks with unequal parts of the sequence.

Which messages there are follows from the placements (``simulator.inputs.galaxy``). They go around a ring, at the rate
of its slowest link. A gather of unequal parts takes p - 1 steps, each as long as the largest part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from simulator.inputs.checks import at_least
from simulator.inputs.galaxy import transitions
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.collective_time import all_reduce_seconds, slowest_link
from simulator.predict.galaxy_traffic import steps_of, summed_gradients

KEYS = "keys and values"
GRADIENTS = "gradients of whole weights"


def message_seconds(
    shape: ModelShape,
    plan: Plan,
    placement: Mapping[str, str],
    devices: Sequence[Hardware],
    sequence: Sequence[int],
    layer: str = "post-norm",
) -> dict[str, float]:
    """Seconds of each kind of message in one layer between two others, forward and backward, in one step.

    Args:
        placement: block -> placement.
        sequence: positions of each rank.
        layer: the kind of layer, a name of ``simulator.inputs.galaxy.LAYERS``.
    """
    for positions in sequence:
        at_least(0, sequence=positions)
    p, link = len(devices), slowest_link(devices)
    if p == 1:
        return {}
    found: dict[str, float] = {}
    for kind, step, size in _messages(shape, plan, placement, layer):
        if step == "all-reduce":
            seconds = all_reduce_seconds("ring", size * shape.sequence, p, link)
        else:
            seconds = link.seconds((p - 1) * size * max(sequence), p - 1)
        found[kind] = found.get(kind, 0.0) + seconds
    sums = [plan.gradient_itemsize * size for size in summed_gradients(shape, placement, layer)]
    if sums:
        found[GRADIENTS] = sum(all_reduce_seconds("ring", size, p, link) for size in sums)
    return found


def longest_part_seconds(
    shape: ModelShape,
    plan: Plan,
    placement: Mapping[str, str],
    devices: Sequence[Hardware],
    layer: str = "post-norm",
) -> float:
    """What one more position in the longest part of the sequence adds to the messages of a layer."""
    sizes = [size for _, step, size in _messages(shape, plan, placement, layer) if step != "all-reduce"]
    return (len(devices) - 1) * sum(sizes) / slowest_link(devices).rate


def _messages(
    shape: ModelShape, plan: Plan, placement: Mapping[str, str], layer: str
) -> Iterator[tuple[str, str, float]]:
    """(kind, step, bytes of one position) of every message in a layer."""
    for block, transition in transitions(placement, layer).items():
        if block == "connection_2":  # its result is the next layer's input
            continue
        width = 2 * shape.kv_heads * shape.head_size if block == "keys" else shape.hidden
        for step in steps_of(transition):
            if step != "split":
                yield KEYS if block == "keys" else step, step, plan.itemsize * plan.micro_batch * width
