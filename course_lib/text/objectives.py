"""One sentence as each training objective sees it: what goes in, what is asked for, who sees whom.

| objective | of | the model reads | it is asked for |
| --- | --- | --- | --- |
| causal | GPT | the text | after each token the next one |
| masked | BERT | the text with some tokens hidden | the hidden tokens, in their places |
| spans | T5 (arXiv:1910.10683) | the text with a mark for each span | each mark and its span, in a decoder |
| whole text | BART (arXiv:1910.13461) | the text with a mask for each span | all of the text, in a decoder |
| blanks | GLM (arXiv:2103.10360) | the text with a mask for each span, then the spans | the spans, in one sequence |

Spans are given as ``(start, end)``, in order and apart. Tokens may be words or numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from course_lib.models.masks import causal_mask, prefix_mask

MASK, START, END, NOTHING = "[M]", "[S]", "[E]", "·"  # NOTHING: a place that the loss does not count
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Seen:
    """One sentence for one objective.

    Args:
        source: what an encoder reads; empty without an encoder.
        inputs, targets: of the part that has a loss, place by place.
        mask: ``(inputs, inputs)``, true where an input may look at another; in a decoder, besides the whole source.
        positions: two for each input, GLM's: its place in the text, and its place within a span (0: in no span).
    """

    inputs: list[str]
    targets: list[str]
    mask: Tensor
    source: list[str] = field(default_factory=list)
    positions: list[tuple[int, int]] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """Places that the loss counts."""
        return sum(target != NOTHING for target in self.targets)


def _check(tokens: Sequence[str], spans: Spans) -> None:
    edges = [0, *(edge for span in spans for edge in span), len(tokens)]
    if edges != sorted(edges) or any(start == end for start, end in spans):
        raise ValueError(
            f"the spans {[*spans]} must lie in {len(tokens)} tokens, in order, apart, and not be empty."
        )


def causal(tokens: Sequence[str]) -> Seen:
    return Seen([*tokens], [*tokens[1:], NOTHING], causal_mask(len(tokens)))


def masked(tokens: Sequence[str], spans: Spans) -> Seen:
    """Each token of a span is hidden in its own place. (BERT's own draw of 80, 10 and 10 % is ``mask_words``.)"""
    _check(tokens, spans)
    hidden = {i for start, end in spans for i in range(start, end)}
    inputs = [MASK if i in hidden else token for i, token in enumerate(tokens)]
    targets = [token if i in hidden else NOTHING for i, token in enumerate(tokens)]
    return Seen(inputs, targets, torch.ones(len(tokens), len(tokens), dtype=torch.bool))


def _shorter(tokens: Sequence[str], spans: Spans, marks: Sequence[str]) -> list[str]:
    """The text with one mark in place of each span."""
    out, at = [], 0
    for (start, end), mark in zip(spans, marks, strict=True):
        out += [*tokens[at:start], mark]
        at = end
    return [*out, *tokens[at:]]


def spans_of_t5(tokens: Sequence[str], spans: Spans) -> Seen:
    """Every span has a mark of its own, ``<0>``, ``<1>``…; the decoder writes each mark and what it stands for."""
    _check(tokens, spans)
    marks = [f"<{i}>" for i in range(len(spans))]
    targets = [t for mark, (start, end) in zip(marks, spans, strict=True) for t in (mark, *tokens[start:end])]
    targets += [END]
    inputs = [START, *targets[:-1]]
    return Seen(inputs, targets, causal_mask(len(inputs)), _shorter(tokens, spans, marks))


def whole_text_of_bart(tokens: Sequence[str], spans: Spans) -> Seen:
    """All masks are the same, however long the span; the decoder writes the whole text."""
    _check(tokens, spans)
    targets = [*tokens, END]
    source = _shorter(tokens, spans, [MASK] * len(spans))
    return Seen([START, *tokens], targets, causal_mask(len(targets)), source)


def blanks_of_glm(tokens: Sequence[str], spans: Spans, order: Sequence[int] | None = None) -> Seen:
    """The text with masks, whose tokens see each other, then span after span, each begun by START.

    The first position of a span's tokens is that of its mask: it says which blank is filled. The second counts from
    1 within the span. So the model is not told how long a blank is.

    Args:
        order: in which the spans are written; the paper shuffles them. None: from left to right.
    """
    _check(tokens, spans)
    inputs = _shorter(tokens, spans, [MASK] * len(spans))
    blanks = [i for i, token in enumerate(inputs) if token == MASK]
    context = len(inputs)
    targets, positions = [NOTHING] * context, [(i, 0) for i in range(context)]
    for i in range(len(spans)) if order is None else order:
        span = [*tokens[slice(*spans[i])]]
        inputs += [START, *span]
        targets += [*span, END]
        positions += [(blanks[i], 1 + j) for j in range(len(span) + 1)]
    return Seen(inputs, targets, prefix_mask(context, len(inputs))[0, 0], [], positions)
