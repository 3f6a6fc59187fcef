"""The check of 18.4: vectors of a padded batch with a prompt in front, and three faults in a given function."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, combinations
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.grading.report import Report, check
from course_lib.models.bert import Bert, BertConfig

Vectors = Callable[
    [Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor], Tensor, Tensor, Tensor], Tensor
]

VECTOR = "The vector of a sentence is the mean of the hidden states at its own tokens, without virtual tokens and without padding."  # noqa: E501
ROWS_IN_ORDER = "it stands in front of every sentence, its rows in their order."
SEEN = "All tokens of a sentence see the prompt, and padding is seen by nobody."
ALONE = "It does not depend on the other sentences of the batch."
ONCE = "`encode` is called once, however many sentences there are."


def faulty_vectors(encode, embed, P, tokens, mask):
    batch, n = len(tokens), len(P)
    rows = P.repeat_interleave(batch, dim=0).view(batch, n, -1)
    embedded = torch.cat((rows, embed(tokens)), dim=1)  # (batch, n + seq, d)
    seen = F.pad(mask, (0, n), value=True)  # (batch, n + seq)
    hidden = encode(embedded, seen)  # (batch, n + seq, d)
    return hidden.mean(dim=1)  # (batch, d)


class Frozen:
    """A small frozen BERT in two functions; ``encode`` adds positions, which begin at 0 at the first virtual token."""

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            self.bert = Bert(BertConfig.tiny(vocab_size=50, hidden_size=32, intermediate_size=64)).eval()
            for parameter in self.bert.parameters():
                torch.nn.init.normal_(parameter, std=0.3)
        self.bert.requires_grad_(False)
        self.calls = 0

    def embed(self, tokens: Tensor) -> Tensor:
        """``(batch, seq)`` to ``(batch, seq, d)``, without positions."""
        return self.bert.embeddings.word_embeddings(tokens)

    def encode(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """``(batch, length, d)`` and a mask ``(batch, length)`` to hidden states ``(batch, length, d)``."""
        self.calls += 1
        if tuple(mask.shape) != tuple(embedded.shape[:2]):
            raise ValueError(
                f"the mask has the shape {tuple(mask.shape)}, expected {tuple(embedded.shape[:2])}"
            )
        parts = self.bert.embeddings
        places = parts.position_embeddings(torch.arange(embedded.shape[1]))
        x = parts.LayerNorm(embedded + places + parts.token_type_embeddings.weight[0])
        return self.bert.encoder(x, mask[:, None, None, :].bool())


class Batch(NamedTuple):
    P: Tensor
    tokens: Tensor
    mask: Tensor


def a_batch(lengths: tuple[int, ...], n: int, seed: int = 0) -> Batch:
    """Sentences of these lengths, padded at the right with token 0, and a prompt."""
    draw = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    tokens = torch.randint(1, 50, mask.shape, generator=draw) * mask
    return Batch(torch.randn(n, 32, generator=draw), tokens, mask)


def distances(vectors: Vectors, lengths: tuple[int, ...], n: int) -> list[list[str]]:
    """A row for each sentence: how far its vector in the batch is from its vector alone."""
    frozen, batch = Frozen(0), a_batch(lengths, n)
    together = vectors(frozen.encode, frozen.embed, *batch)
    rows = []
    for i, length in enumerate(lengths):
        own = batch.tokens[i : i + 1, :length], batch.mask[i : i + 1, :length]
        alone = vectors(frozen.encode, frozen.embed, batch.P, *own)[0]
        rows.append([f"{i + 1}", length, f"{(together[i] - alone).norm():.2f}", f"{alone.norm():.2f}"])
    return rows


def _with_any_ids(batch: Batch) -> Batch:
    """Padding has the id of a word, and two words have id 0: only the mask says what padding is."""
    tokens = batch.tokens.clone()
    tokens[:, :3:2] = 0
    return batch._replace(tokens=tokens.where(batch.mask, 7))


CASES = (
    ("one sentence", (5,), 3),
    ("three sentences of one length", (4, 4, 4), 3),
    ("three sentences with padding", (6, 3, 4), 2),
    ("one virtual token, two sentences", (5, 2), 1),
    ("more virtual tokens than text", (2, 1, 2), 6),
    ("a sentence of one token", (1, 7), 3),
)


@check
def check_18_4(report: Report, mended_vectors: Vectors) -> None:
    alone = False  # whether the answer is right for one sentence
    for name, lengths, n in CASES:
        with report.case(name):
            frozen, batch = Frozen(report.seed()), _with_any_ids(a_batch(lengths, n, report.seed()))
            P = batch.P.clone().requires_grad_()
            own = batch.tokens.clone(), batch.mask.clone()
            got = mended_vectors(frozen.encode, frozen.embed, P, *own)
            calls = frozen.calls
            if not isinstance(got, Tensor) or tuple(got.shape) != (len(lengths), 32):
                shape = tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__
                report.fail(
                    f"the result is {shape}, expected a tensor {(len(lengths), 32)}",
                    task="Return `(batch, d)`",
                )
            for what, now, before in zip(("tokens", "mask"), own, batch[1:], strict=True):
                if not now.equal(before):
                    report.fail(f"`{what}` has changed", task="`tokens` and `mask` stay as they are.")
            right = _vectors(frozen, batch, frozenset())
            report.close(
                "the vectors",
                got.detach(),
                right,
                tolerance=1e-4,
                mistakes=MISTAKES,
                given=(frozen, batch),
                task=ALONE if alone else VECTOR,
                tasks=VIOLATED,
            )
            alone = True
            _gradient(report, frozen, batch, P, got)
            report.at_most("calls of `encode`", calls, 1, task=ONCE)


def _gradient(report: Report, frozen: Frozen, batch: Batch, P: Tensor, got: Tensor) -> None:
    if not got.requires_grad:
        report.fail("backward does not reach `P`", task="Backward reaches `P`")
    got.square().sum().backward()
    own = batch.P.clone().requires_grad_()
    _vectors(frozen, Batch(own, batch.tokens, batch.mask), frozenset()).square().sum().backward()
    report.close("the gradient of `P`", P.grad, own.grad, tolerance=1e-3, task="Backward reaches `P`")


# ---- what is right, and the faults -------------------------------------------------------------------------------

ROWS, END, MEAN = "rows", "end", "mean"
FAULTS = {
    ROWS: "each row of `P` is repeated in place of the whole `P`",
    END: "the mask is lengthened at the wrong end",
    MEAN: "the mean is taken over all places, padding and virtual tokens too",
}


def _vectors(
    frozen: Frozen,
    batch: Batch,
    faults: frozenset[str],
    over: str = "text",
    hidden: bool = False,
    divided_by: str | None = None,
    all_seen: bool = False,
) -> Tensor:
    P, tokens, mask = batch
    many, n = len(tokens), len(P)
    rows = P.repeat_interleave(many, 0).view(many, n, -1) if ROWS in faults else P.expand(many, -1, -1)
    seen = F.pad(mask, (0, n) if END in faults else (n, 0), value=not hidden)
    seen = torch.ones_like(seen) if all_seen else seen
    states = frozen.encode(torch.cat((rows, frozen.embed(tokens)), 1), seen)
    if MEAN in faults:
        return states.mean(1)
    columns = {
        "text": F.pad(mask, (n, 0), value=False),
        "all that is seen": F.pad(mask, (n, 0), value=True),
        "columns of text": F.pad(torch.ones_like(mask), (n, 0), value=False),
        "as many columns from the left": F.pad(mask, (0, n), value=False),
    }
    weights = columns[over].float()
    return (states * weights[..., None]).sum(1) / columns[divided_by or over].sum(1, keepdim=True)


def _sentence(faults: tuple[str, ...]) -> str:
    return "when " + ", and ".join(FAULTS[fault] for fault in faults)


def _program(faults: frozenset[str], **settings: Any) -> Callable[[Frozen, Batch], Tensor]:
    return lambda frozen, batch: _vectors(frozen, batch, faults, **settings).detach()


def _over(reduce: Callable[[Tensor, Tensor, int], Tensor]) -> Callable[[Frozen, Batch], Tensor]:
    """What ``reduce(states, mask, n)`` makes of the right hidden states, (batch, n + seq, d), prompt and all."""

    def program(frozen: Frozen, batch: Batch) -> Tensor:
        P, tokens, mask = batch
        rows = torch.cat((P.expand(len(tokens), -1, -1), frozen.embed(tokens)), 1)
        return reduce(frozen.encode(rows, F.pad(mask, (len(P), 0), value=True)), mask, len(P))

    return program


def _sums(states: Tensor, mask: Tensor, n: int) -> Tensor:
    return (states[:, n:] * mask[..., None]).sum(1)


def _largest(states: Tensor, mask: Tensor, n: int) -> Tensor:
    return states[:, n:].masked_fill(~mask[..., None], float("-inf")).amax(1)


def _last_token(states: Tensor, mask: Tensor, n: int) -> Tensor:
    return states[torch.arange(len(states)), n - 1 + mask.sum(1)]


def _of_embeddings(frozen: Frozen, batch: Batch) -> Tensor:
    return _sums(frozen.embed(batch.tokens), batch.mask, 0) / batch.mask.sum(1, keepdim=True)


def _without_prompt(frozen: Frozen, batch: Batch) -> Tensor:
    states = frozen.encode(frozen.embed(batch.tokens), batch.mask)
    return _sums(states, batch.mask, 0) / batch.mask.sum(1, keepdim=True)


def _prompt_behind(frozen: Frozen, batch: Batch) -> Tensor:
    P, tokens, mask = batch
    rows = torch.cat((frozen.embed(tokens), P.expand(len(tokens), -1, -1)), 1)
    states = frozen.encode(rows, F.pad(mask, (0, len(P)), value=True))[:, : mask.shape[1]]
    return _sums(states, mask, 0) / mask.sum(1, keepdim=True)


_subsets = chain.from_iterable(combinations(FAULTS, size) for size in (1, 2, 3))
MISTAKES: dict[str, Callable[[Frozen, Batch], Tensor]] = {
    **{_sentence(faults): _program(frozenset(faults)) for faults in _subsets},
    "when the mean counts the virtual tokens, too": _program(frozenset(), over="all that is seen"),
    "when the mean counts padding": _program(frozenset(), over="columns of text"),
    "when the mean is taken at the first places, where the virtual tokens stand": _program(
        frozenset(), over="as many columns from the left"
    ),
    "when the sum is divided by the number of columns, padding too": _program(
        frozenset(), divided_by="columns of text"
    ),
    "when the sum is divided by a number that counts the virtual tokens, too": _program(
        frozenset(), divided_by="all that is seen"
    ),
    "when the sum is not divided by the number of tokens": _over(_sums),
    "when the sum is divided by the number of tokens of the whole batch": _over(
        lambda states, mask, n: _sums(states, mask, n) / mask.sum()
    ),
    "when one mean is taken over all sentences of the batch": _over(
        lambda states, mask, n: states[:, n:][mask].mean(0).expand(len(states), -1)
    ),
    "when the mean is brought to length 1": _over(
        lambda states, mask, n: F.normalize(_sums(states, mask, n), dim=1)
    ),
    "when the largest numbers are taken in place of the mean": _over(_largest),
    "when the hidden state of the first virtual token is taken in place of the mean": _over(
        lambda states, mask, n: states[:, 0]
    ),
    "when the hidden state of the first token is taken in place of the mean": _over(
        lambda states, mask, n: states[:, n]
    ),
    "when the hidden state of the last token is taken in place of the mean": _over(_last_token),
    "when the mean is taken over embeddings, and not over hidden states": _of_embeddings,
    "when no prompt stands in front": _without_prompt,
    "when the prompt stands behind the text": _prompt_behind,
    "when padding is not hidden from `encode`": _program(frozenset(), all_seen=True),
    "when the mask hides the virtual tokens": _program(frozenset(), hidden=True),
}
VIOLATED = {sentence: VECTOR for sentence in MISTAKES if "the mean" in sentence or "the sum" in sentence} | {
    "when the sum is divided by the number of tokens of the whole batch": ALONE,
    "when one mean is taken over all sentences of the batch": ALONE,
    "when no prompt stands in front": ROWS_IN_ORDER,
    "when the prompt stands behind the text": ROWS_IN_ORDER,
    _sentence((ROWS,)): ROWS_IN_ORDER,
    _sentence((END,)): SEEN,
    "when padding is not hidden from `encode`": SEEN,
    "when the mask hides the virtual tokens": SEEN,
}
