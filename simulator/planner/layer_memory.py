"""What a rank holds of a model whose layers' blocks have placements, by its shares of heads, columns and positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from simulator.inputs.hardware import Hardware
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.plots.style import human
from simulator.predict.memory import attention_core_bytes, embedding_bytes, layer_bytes
from simulator.predict.memory import head_bytes as output_bytes
from simulator.predict.shares import with_heads


def share_bytes(
    shape: ModelShape, plan: Plan, placement: Mapping[str, str]
) -> tuple[dict[str, float], float]:
    """(bytes of one unit of each list, bytes that a rank holds whatever its shares are), of all layers.

    A unit of ``"heads"`` is one head of keys and values with the query heads that read it. Parameters, gradients and
    optimizer states, and what is kept for backward. The input of a block that is split by heads or columns is kept
    whole, as every rank gathers it. Embedding, final norm and output layer are whole on every rank.
    """
    tokens, e, mask = plan.micro_batch * shape.sequence, plan.itemsize, 1 if shape.dropout else 0
    weight = plan.itemsize + plan.gradient_itemsize + plan.optimizer_bytes  # bytes of one parameter's states
    units = {"heads": shape.kv_heads, "columns": shape.ffn, "sequence": shape.sequence}
    each, fixed = dict.fromkeys(units, 0.0), 0.0

    def add(name: str, size: float) -> None:
        """``size`` bytes, split by a list or not."""
        nonlocal fixed
        if name == "whole":
            fixed += size
        else:
            each[name] += size / units[name]

    group = with_heads(shape, shape.heads // shape.kv_heads)
    two = with_heads(shape, 2 * shape.heads // shape.kv_heads)
    by_head = shape.kv_heads * (two.attention_parameters() - group.attention_parameters())
    by_column = shape.ffn * (
        replace(shape, ffn=2).expert_parameters() - replace(shape, ffn=1).expert_parameters()
    )
    split_by = {"attention": "heads", "mlp": "columns"}
    for block, size, whole_size in (
        ("attention", by_head, shape.attention_parameters()),
        ("mlp", by_column, shape.expert_parameters()),
    ):
        cut = placement[block] == split_by[block]
        add(placement[block] if cut else "whole", weight * (size if cut else whole_size))
        add("whole", weight * (whole_size - size) if cut else 0.0)  # biases of the result
        # Its input, and what it keeps inside; by positions it has its own part of both.
        add("sequence" if placement[block] == "sequence" else "whole", e * tokens * shape.hidden)
        inside = _inside(shape, plan, block)
        add(placement[block], inside)
    if placement["attention"] == "sequence":  # keys and values of all positions are gathered
        add("whole", 2 * e * tokens * shape.kv_heads * shape.head_size)
    for block in ("connection_1", "connection_2"):
        add("whole", weight * shape.norm_parameters)
        add(placement[block], (e + mask) * tokens * shape.hidden)  # the norm's input, a dropout mask
    fixed, each = shape.layers * fixed, {name: shape.layers * size for name, size in each.items()}
    root = shape.embedding_parameters() + shape.head_parameters()
    return each, fixed + weight * root + embedding_bytes(shape, plan) + output_bytes(shape, plan)


def _inside(shape: ModelShape, plan: Plan, block: str) -> float:
    """What attention keeps between its input and its result, or the MLP."""
    if block == "mlp":
        one = layer_bytes(replace(shape, ffn=2), plan) - layer_bytes(replace(shape, ffn=1), plan)
        return shape.ffn * one
    tokens, kv = plan.micro_batch * shape.sequence, shape.kv_heads * shape.head_size
    vectors = plan.itemsize * tokens * (2 * shape.attention_width + 2 * kv)
    return vectors + attention_core_bytes(shape, plan)


def check_fits(
    held: Sequence[float], fixed: float, devices: Sequence[Hardware], shared: float | None = None
) -> None:
    """Refuse what does not fit, in a sentence that names the device and how much it lacks.

    Args:
        held: bytes that each rank needs with its shares.
        fixed: bytes that each rank needs without any share.
        shared: bytes that all ranks' shares take together, where no split fits; None: these shares are the user's.
    """
    smallest = min(range(len(devices)), key=lambda r: devices[r].memory)
    if fixed > devices[smallest].memory:
        raise ValueError(f"without a share of any layer, {lacking(smallest, devices[smallest], fixed)}")
    rank = max(range(len(devices)), key=lambda r: held[r] - devices[r].memory)
    if held[rank] <= devices[rank].memory:
        return
    sentence = lacking(rank, devices[rank], held[rank])
    if shared is not None:
        room = sum(device.memory - fixed for device in devices)
        sentence = f"no split fits; in the fastest one, {sentence}"
        if shared > room:
            sentence += f", and the devices together lack {human(shared - room)}"
    raise ValueError(sentence)


def lacking(rank: int, device: Hardware, needed: float) -> str:
    """``"rank 1 (laptop-cpu) needs 3 GB and has 2 GB: it lacks 1 GB"``."""
    return (
        f"rank {rank} ({device.name}) needs {human(needed)} and has {human(device.memory)}: "
        f"it lacks {human(needed - device.memory)}"
    )
