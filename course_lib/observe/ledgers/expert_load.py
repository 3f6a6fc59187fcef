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
def record_expert_load(model: nn.Module) -> Iterator[list[list[int]]]:
    """Yields what is filled with a list for each layer with experts: the copies that this rank's tokens sent to each.

    A layer that is recomputed counts twice, like all others of its model.
    """
    layers, loads = sparse_layers(model), []

    def count(layer: SparseMLP, *_: object) -> None:
        sizes = layer.chosen.flatten().bincount(minlength=layer.probabilities.shape[1])
        load = loads[layers.index(layer)]
        load[:] = (sizes + sizes.new_tensor(load or 0)).tolist()

    loads += [[] for _ in layers]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        yield loads
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


def busiest(loads: Sequence[Sequence[float]], ranks: int) -> tuple[float, float]:
    """The load of the busiest expert of any layer, and of the busiest rank, which a layer waits for: 1 is the mean.

    Args:
        loads: for each layer the copies of each expert, from all ranks.
        ranks: among which the experts are dealt.
    """
    experts = max(max(load) * len(load) / sum(load) for load in loads)
    return experts, max(max(per_rank(load, ranks)) * ranks / sum(load) for load in loads)
