"""What 18.3 should give, and what likely mistakes give: attention with a prefix that all sequences share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _scores(q: Tensor, k: Tensor, P_K: Tensor) -> tuple[Tensor, Tensor]:
    q, k, P_K = q.double(), k.double(), P_K.double()
    scale = q.shape[-1] ** -0.5
    return scale * q @ P_K.mT, scale * q @ k.mT


def _hidden(mask: Tensor | None, like: Tensor) -> Tensor:
    return (
        torch.zeros_like(like, dtype=torch.bool) if mask is None else ~mask[:, None, None, :].expand_as(like)
    )


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    P_K: Tensor,
    P_V: Tensor,
    mask: Tensor | None,
    *,
    scaled: tuple[float, float] = (1.0, 1.0),
    masked: str = "text",
    hidden_score: float = float("-inf"),
    over: int = -1,
) -> tuple[Tensor, Tensor]:
    """Output and share in float64.

    Args:
        scaled: what the scores of the prefix and those of the text are multiplied by, for a mistake.
        masked: what the mask hides; only "text" is right.
        hidden_score: the score of a hidden token; over: the dimension of the softmax.
    """
    scores = torch.cat([by * part for by, part in zip(scaled, _scores(q, k, P_K), strict=True)], -1)
    n, width = P_K.shape[1], scores.shape[-1]
    seen = torch.ones(len(q), k.shape[2], dtype=torch.bool) if mask is None else mask
    columns = torch.nn.functional.pad(seen, (n, 0), value=True)[:, None, None, :]  # seen by every query
    if masked == "nothing":
        columns = torch.ones_like(columns)
    elif masked == "wrong end":
        columns = columns.roll(-n, -1)
    elif masked == "prefix too" and mask is not None:
        columns = columns & (torch.arange(width) >= n)
    elif masked == "queries":
        columns = seen[:, None, :, None] | (torch.arange(width) < n)
    elif masked == "later":
        columns = columns & torch.ones(scores.shape[2], width, dtype=torch.bool).tril(n)
    elif masked == "what is seen" and mask is not None:
        columns = ~columns | (torch.arange(width) < n)
    if masked == "weights":
        weights = scores.softmax(-1) * columns
    else:
        weights = scores.masked_fill(~columns, hidden_score).softmax(over)
    V = torch.cat((P_V.double().expand(len(q), -1, -1, -1), v.double()), 2)
    return weights @ V, weights[..., :n].sum(-1)


def _weights(*given: Any) -> tuple[Tensor, Tensor]:
    """The weights of the prefix and those of the text."""
    q, k, _, P_K, _, mask = given
    to_prefix, to_text = _scores(q, k, P_K)
    to_text = to_text.masked_fill(_hidden(mask, to_text), float("-inf"))
    weights = torch.cat((to_prefix, to_text), -1).softmax(-1)
    return weights.split((P_K.shape[1], k.shape[2]), -1)


def _sum_of_values(of: str) -> Callable[..., Tensor]:
    """The weighted sum with one part of the values left out, or with the prefix's keys as its values."""

    def program(*given: Any) -> Tensor:
        _, _, v, P_K, P_V, _ = given
        on_prefix, on_text = _weights(*given)
        parts = {
            "text": lambda: on_text @ v.double(),
            "prefix": lambda: on_prefix @ P_V.double(),
            "keys": lambda: on_prefix @ P_K.double() + on_text @ v.double(),
        }
        return parts[of]()

    return program


def _heads_not_moved(*given: Any) -> Tensor:
    """``(batch, heads, seq, size)`` viewed as ``(heads, batch * seq, size)`` for the scores of the prefix."""
    q, k, v, P_K, P_V, mask = given
    rows = q.double().reshape(q.shape[1], -1, q.shape[-1])
    to_prefix = (rows @ P_K.double().mT).view(*q.shape[:3], -1) * q.shape[-1] ** -0.5
    _, to_text = _scores(q, k, P_K)
    to_text = to_text.masked_fill(_hidden(mask, to_text), float("-inf"))
    on_prefix, on_text = torch.cat((to_prefix, to_text), -1).softmax(-1).split((P_K.shape[1], k.shape[2]), -1)
    return on_prefix @ P_V.double() + on_text @ v.double()


def _last_weights(*given: Any) -> Tensor:
    return torch.cat(_weights(*given), -1)[..., -given[3].shape[1] :].sum(-1)


def _two_softmaxes(q: Tensor, k: Tensor, v: Tensor, P_K: Tensor, P_V: Tensor, mask: Tensor | None) -> Tensor:
    to_prefix, to_text = _scores(q, k, P_K)
    to_text = to_text.masked_fill(_hidden(mask, to_text), float("-inf"))
    return to_prefix.softmax(-1) @ P_V.double() + to_text.softmax(-1) @ v.double()


def _without(*given: Any) -> Tensor:
    q, k, v, P_K, _, mask = given
    _, to_text = _scores(q, k, P_K)
    return to_text.masked_fill(_hidden(mask, to_text), float("-inf")).softmax(-1) @ v.double()


def _no_maximum(*given: Any) -> Tensor:
    """Exponentials that are not brought to a common maximum: each part to its own."""
    q, k, v, P_K, P_V, mask = given
    to_prefix, to_text = _scores(q, k, P_K)
    to_text = to_text.masked_fill(_hidden(mask, to_text), float("-inf"))
    w_p, w_t = ((s - s.amax(-1, keepdim=True)).exp() for s in (to_prefix, to_text))
    total = w_p.sum(-1, keepdim=True) + w_t.sum(-1, keepdim=True)
    return (w_p @ P_V.double() + w_t @ v.double()) / total


def _mistake(**settings: Any) -> Callable[..., Tensor]:
    return lambda *given: attended(*given, **settings)[0]


def _by_root(power: float, of_text: bool = True) -> Callable[..., Tensor]:
    """Scores multiplied by a power of the root of the size; those of the prefix alone unless ``of_text``."""

    def program(*given: Any) -> Tensor:
        by = given[0].shape[-1] ** (power / 2)
        return attended(*given, scaled=(by, by if of_text else 1.0))[0]

    return program


def _if_finite(program: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    """A mistake that gives NaN, as where a sequence is all padding, says nothing about the answer."""

    def finite(*given: Any) -> Tensor | None:
        value = program(*given)
        return value if value.isfinite().all() else None

    return finite


OUTPUTS: dict[str, Callable[..., Tensor | None]] = {
    "when prefix and text each have a softmax of their own, and both results are added": _two_softmaxes,
    "when prefix and text each have a softmax of their own, and the mean of both is taken": lambda *given: (
        _two_softmaxes(*given) / 2
    ),
    "when each of the two parts is brought to a maximum of its own": _no_maximum,
    "when the prefix is left out": _without,
    "when scores are not divided by the root of the size": _by_root(1),
    "when the scores of the prefix are not divided by the root of the size": _by_root(1, of_text=False),
    "when scores are divided by the size, and not by its root": _by_root(-1),
    "when the mask is left out": _mistake(masked="nothing"),
    "when the mask is lengthened at the wrong end": _mistake(masked="wrong end"),
    "when the mask hides the prefix, too": _mistake(masked="prefix too"),
    "when the mask hides queries in place of keys": _mistake(masked="queries"),
    "when the mask hides what should be seen, and shows padding": _mistake(masked="what is seen"),
    "when the score of a hidden token is 0, and not -inf": _mistake(hidden_score=0.0),
    "when the score of a hidden token is -100, and other scores are lower": _mistake(hidden_score=-100.0),
    "when the softmax runs over the queries, and not over the keys": _mistake(over=-2),
    "when the values of the prefix are left out of the sum": _sum_of_values("text"),
    "when the values of the text are left out of the sum": _sum_of_values("prefix"),
    "when the weights of the prefix multiply its keys, and not its values": _sum_of_values("keys"),
    "when `q` is viewed as `(heads, batch · seq, size)` without moving the heads to the front": _heads_not_moved,
    "when hidden tokens are taken out behind the softmax, and not in front of it": _mistake(masked="weights"),
    "when a query does not see the text behind it": _mistake(masked="later"),
    "when keys and values of the prefix are exchanged": lambda q, k, v, P_K, P_V, mask: attended(
        q, k, v, P_V, P_K, mask
    )[0],
}
OUTPUTS = {sentence: _if_finite(program) for sentence, program in OUTPUTS.items()}
SHARES: dict[str, Callable[..., Tensor]] = {
    "when it is the share of the text": lambda *given: 1 - attended(*given)[1],
    "when it is the mean of the weights, and not their sum": lambda *given: (
        attended(*given)[1] / given[3].shape[1]
    ),
    "when it is the share of the first virtual token alone": lambda *given: _weights(*given)[0][..., 0],
    "when hidden tokens of text count in the sum of the weights": lambda *given: attended(
        *given, masked="nothing"
    )[1],
    "when the last n weights are added, and not the first n": _last_weights,
    "when the prefix has a softmax of its own, so that its weights add up to 1": lambda *given: (
        torch.ones_like(attended(*given)[1])
    ),
}
