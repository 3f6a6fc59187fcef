"""How many copies of tokens the experts of each layer get: the ledger of balance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import add
from typing import Any

from torch import nn

from course_lib.models.experts import SparseMLP, sparse_layers
from simulator.predict.expert_traffic import per_rank


@contextmanager
def record_expert_load(model: nn.Module) -> Iterator[dict[str, list]]:
    """Yields what is filled for each layer with experts: ``expert_load``, a list of the copies of this rank's tokens
    that each took, and ``expert_dropped``, how many were dropped.

    A layer that is recomputed counts twice, like all others of its model.
    """
    layers = sparse_layers(model)
    loads: list[list[int]] = [[] for _ in layers]
    dropped = [0] * len(layers)

    def count(layer: SparseMLP, *_: object) -> None:
        i, sizes = layers.index(layer), layer.sizes.tolist()
        loads[i][:] = map(add, loads[i] or [0] * len(sizes), sizes)
        dropped[i] += layer.chosen.numel() - sum(sizes)

    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        yield {"expert_load": loads, "expert_dropped": dropped}
    finally:
        for hook in hooks:
            hook.remove()


def of_all_ranks(ranks: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """What each layer's experts get in all, from what ranks tell: their ``pp`` and their ``expert_load``."""
    stages: dict[int, list[list[int]]] = {}
    for rank in ranks:
        before = stages.setdefault(rank["pp"], [[0] * len(load) for load in rank["expert_load"]])
        for total, load in zip(before, rank["expert_load"], strict=True):
            total[:] = map(add, total, load)
    return [load for _, loads in sorted(stages.items()) for load in loads]


def dropped_share(ranks: Sequence[Mapping[str, Any]]) -> float:
    """Of the copies of all layers' tokens, from what ranks tell."""
    dropped = sum(sum(rank["expert_dropped"]) for rank in ranks)
    return dropped / (dropped + sum(map(sum, of_all_ranks(ranks))))


def busiest(loads: Sequence[Sequence[float]], ranks: int) -> tuple[float, float]:
    """The load of the busiest expert of any layer, and of the busiest rank, which a layer waits for: 1 is the mean.

    Args:
        loads: for each layer the copies of each expert, from all ranks.
        ranks: among which the experts are dealt.
    """
    experts = max(max(load) * len(load) / sum(load) for load in loads)
    return experts, max(max(per_rank(load, ranks)) * ranks / sum(load) for load in loads)
