"""What the ends of a model add to ``tensor_parallel_traffic`` where the vocabulary is cut over the ranks, too.

The embedding, the output matrix and the loss on one microbatch, forward and backward (arXiv:1909.08053, section 3).
"""

from __future__ import annotations

from simulator.inputs.checks import at_least
from simulator.ledgers.traffic import Traffic
from simulator.predict.traffic import calls


def embedding_traffic(
    tokens: int,
    hidden: int,
    ranks: int,
    itemsize: int = 2,
    rank: int | None = None,
    *,
    sequence_parallel: bool = False,
) -> Traffic:
    """An embedding cut by words: the ranks' rows are added up in forward. Its backward sends nothing, because every
    rank has the whole gradient; with sequence parallelism a rank has that of its tokens, and gathers the others."""
    at_least(1, tokens=tokens, hidden=hidden)
    whole = [tokens * hidden]
    if not sequence_parallel:
        return calls("all-reduce", whole, itemsize, ranks, rank)
    scattered = calls("reduce-scatter", whole, itemsize, ranks, rank)
    return scattered + calls("all-gather", whole, itemsize, ranks, rank)


def head_traffic(
    tokens: int,
    hidden: int,
    ranks: int,
    itemsize: int = 2,
    rank: int | None = None,
    *,
    sequence_parallel: bool = False,
    regather: bool = True,
) -> Traffic:
    """The output matrix cut by words: its input enters as that of a layer does, and the logits stay where they are."""
    at_least(1, tokens=tokens, hidden=hidden)
    whole = [tokens * hidden]
    if not sequence_parallel:
        return calls("all-reduce", whole, itemsize, ranks, rank)
    gathered = calls("all-gather", whole, itemsize, ranks, rank, 2 if regather else 1)
    return gathered + calls("reduce-scatter", whole, itemsize, ranks, rank)


def loss_traffic(
    tokens: int, ranks: int, itemsize: int = 4, rank: int | None = None, *, label_smoothing: bool = False
) -> Traffic:
    """Cross entropy on logits cut by words. One number a token, the largest logit; then two, the sum of exponentials
    and the target's logit (three with label smoothing). Gathering the logits would take V."""
    at_least(1, tokens=tokens)
    sizes = [tokens, (3 if label_smoothing else 2) * tokens]
    return calls("all-reduce", sizes, itemsize, ranks, rank)
