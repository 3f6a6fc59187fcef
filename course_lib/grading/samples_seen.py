"""How many samples a rank's model sees: a rank that gathers the batch and computes all of it sees others' samples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def samples_seen(module: nn.Module) -> Iterator[list[int]]:
    """A list that grows by the samples of each forward pass: the first dimension of the first argument."""
    seen: list[int] = []

    def count(_: nn.Module, args: tuple, kwargs: dict) -> None:
        seen.append(len(next(iter((*args, *kwargs.values())))))

    handle = module.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def others_samples(seen: list[int], own: int) -> str:
    """What is wrong, for a rank that has ``own`` samples; empty where nothing is."""
    return f"the model sees {sum(seen)} samples, and this rank has {own}" if sum(seen) > own else ""
