"""Exercise 02.4: a mask from prefixes and padding, what likely mistakes give, and a count of operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def masked(prefixes: Tensor, lengths: Tensor, seq: int, mistake: str = "") -> Tensor:
    """(batch, seq, seq): true where the query of a row may look at the key of a column. One place after the other."""
    mask = torch.zeros(len(lengths), seq, seq, dtype=torch.bool)
    for b, (prefix, length) in enumerate(zip(prefixes.tolist(), lengths.tolist(), strict=True)):
        first = 0 if mistake == "right" else seq - length  # where the text begins
        for query in range(seq):
            for key in range(seq):
                i, j = query - first, key - first  # places in the text
                inside = j < prefix if mistake == "keys" else (i < prefix and j < prefix)
                if mistake == "from row":
                    inside = query < prefix and key < prefix
                elif mistake == "one more":
                    inside = i <= prefix and j <= prefix
                elif mistake == "causal":
                    inside = False
                sees = j <= i or inside
                if mistake == "transposed":
                    sees = i <= j or inside
                if mistake == "padded keys":
                    mask[b, query, key] = sees
                    continue
                in_text = 0 <= i < length and 0 <= j < length
                if mistake == "padded queries":
                    in_text = 0 <= j < length
                elif mistake == "padding in front":
                    in_text = 0 <= i < length
                alone = mistake != "nothing" and query == key
                mask[b, query, key] = (in_text and sees) or alone
    return ~mask if mistake == "inverted" else mask


MASKS: dict[str, Callable[..., Tensor]] = {
    "when the text stands at the left end of its row": partial(masked, mistake="right"),
    "when the prefix is counted from the beginning of the row, and not of the text": (
        partial(masked, mistake="from row")
    ),
    "when the prefix has one token more": partial(masked, mistake="one more"),
    "when the tokens of the prefix see only what is before them": partial(masked, mistake="causal"),
    "when each token sees those after it, and not those before it": partial(masked, mistake="transposed"),
    "when padding can be seen": partial(masked, mistake="padded keys"),
    "when tokens see the padding in front of their text": partial(masked, mistake="padding in front"),
    "when padding sees other tokens": partial(masked, mistake="padded queries"),
    "when padding does not see itself": partial(masked, mistake="nothing"),
    "when true stands where a key is hidden": partial(masked, mistake="inverted"),
}


class Operations(TorchDispatchMode):
    """Counts PyTorch's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))
