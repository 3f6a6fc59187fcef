"""The formula of each part of a rank's memory, in words, with the values that it was computed from."""

from __future__ import annotations

from typing import NamedTuple

from simulator.inputs.checks import index
from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.ledgers.memory import MemoryBreakdown
from simulator.plots.style import human
from simulator.predict.in_flight import in_flight
from simulator.predict.memory import (
    embedding_bytes,
    head_bytes,
    kept_layer_bytes,
    placeholder_bytes,
    recomputed_bytes,
    stage_bytes,
)


class Term(NamedTuple):
    """One addend of a part: what it is, and its bytes."""

    words: str
    bytes: float


def formulas(
    shape: ModelShape, plan: Plan, rank: int, memory: MemoryBreakdown, hardware: Hardware
) -> dict[str, list[Term]]:
    """For each category of ``memory`` the terms that add up to it.

    Args:
        plan: on the device, so that it leaves nothing open.
        memory: what pipeline rank ``rank`` holds, as ``plan_memory`` says.
    """
    index(plan.pp, rank=rank)
    return {
        "parameters": _states(shape, plan, rank, plan.itemsize, 3),
        "gradients": _states(shape, plan, rank, plan.gradient_itemsize, 2),
        "optimizer_states": _states(shape, plan, rank, plan.optimizer_bytes, 1),
        "activations": _activations(shape, plan, rank, memory.activations),
        "buffers": _buffers(shape, plan, rank, memory.buffers),
        "reserved": [
            Term("context of the device, its libraries and its allocator", hardware.context),
            Term(
                f"{hardware.fragmentation:.0%} of {human(memory.total)}: blocks that the allocator cannot use again",
                hardware.fragmentation * memory.total,
            ),
        ],
    }


def _states(shape: ModelShape, plan: Plan, rank: int, itemsize: int, sharded_from: int) -> list[Term]:
    """Bytes for each parameter of the rank, sharded from that stage of ZeRO on."""
    terms = []
    names = "parameters", "parameters of experts"
    for what, parameters, sharers in zip(names, plan.parameters_of(shape, rank), plan.copies, strict=True):
        shard = min(plan.shard, sharers) if plan.zero >= sharded_from else 1
        words = f"{parameters / 1e9:.4g} billion {what} of this rank × {itemsize} bytes"
        if shard > 1:
            words += f" / {shard} ranks that share them"
        if parameters:
            terms.append(Term(words, parameters * itemsize / shard))
    return terms


def _activations(shape: ModelShape, plan: Plan, rank: int, total: float) -> list[Term]:
    one = kept_layer_bytes(shape, plan)
    layer = f"{human(one)} that a layer keeps of {plan.micro_batch} × {shape.sequence} tokens"
    if plan.schedule not in ("1f1b", "interleaved-1f1b"):
        most = max(stage_bytes(shape, plan)[0])
        return [
            Term(
                f"the most that {plan.schedule} keeps at once; a forward keeps up to {human(most)}, with {layer}",
                total,
            )
        ]
    layers = plan.layers_of(shape)[rank]
    counts = in_flight(plan, rank, layers)
    terms = [
        Term(f"{held} layers × {_microbatches(count)} in flight × {layer}", held * count * one)
        for held, count in zip(layers, counts, strict=True)
    ]
    if rank == 0 and (mask := embedding_bytes(shape, plan)):
        terms.append(
            Term(f"the dropout mask of the embedding × {_microbatches(counts[0])}", mask * counts[0])
        )
    if rank == plan.pp - 1:
        terms.append(Term("the final norm and the logits of one microbatch", head_bytes(shape, plan)))
    return terms


def _microbatches(count: int) -> str:
    return f"{count} microbatch{'' if count == 1 else 'es'}"


def _buffers(shape: ModelShape, plan: Plan, rank: int, total: float) -> list[Term]:
    again, placeholder = recomputed_bytes(shape, plan), placeholder_bytes(shape, plan, rank)
    messages = {
        0: "the bucket of gradients that is being sent",
        1: "the bucket of gradients that is being sent",
        2: "the gradients of one layer, before they are scattered",
        3: "the layers that are gathered just now, and the gradients of the largest",
    }[plan.zero]
    terms = [
        Term("one layer that backward computes again", again),
        Term("empty tensors in place of gradients that a kernel adds up in fp32", placeholder),
        Term(messages, total - again - placeholder),
    ]
    return [term for term in terms if term.bytes > 1e-6 * max(1, total)]
