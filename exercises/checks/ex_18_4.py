"""18.4: vectors of a padded batch with a prompt in front; the chapter shows the faulty function and its table."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.grading.judge import Fact, record
from course_lib.models.bert import Bert, BertConfig

MEAN = (
    "The vector of a sentence is the mean of the hidden states at its own tokens, without virtual tokens "
    "and without padding. It does not depend on the other sentences of the batch."
)
FACTS = {
    "same": Fact("what is given", "`tokens` and `mask` stay as they are."),
    "vectors": Fact("the vectors", MEAN, tolerance=1e-4),
    "reached": Fact("backward", "Backward reaches `P`"),
    "gradient": Fact("the gradient of `P`", "Backward reaches `P`", tolerance=1e-3),
    "calls": Fact("calls of `encode`", "`encode` is called once, however many sentences there are.", most=1),
}


def faulty_vectors(encode, embed, P, tokens, mask):
    batch, n = len(tokens), len(P)
    rows = P.repeat_interleave(batch, dim=0).view(batch, n, -1)
    embedded = torch.cat((rows, embed(tokens)), dim=1)  # (batch, n + seq, d)
    seen = F.pad(mask, (0, n), value=True)  # (batch, n + seq)
    hidden = encode(embedded, seen)  # (batch, n + seq, d)
    return hidden.mean(dim=1)  # (batch, d)


def a_model(seed: int) -> tuple[Callable[..., Tensor], Callable[..., Tensor], list]:
    """A small frozen BERT as ``encode``, which adds positions, and ``embed``; and a list of the calls of ``encode``."""
    torch.manual_seed(seed)
    bert, calls = Bert(BertConfig.tiny(vocab_size=50, hidden_size=32, intermediate_size=64)).eval(), []
    for parameter in bert.requires_grad_(False).parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    parts = bert.embeddings

    def encode(embedded: Tensor, mask: Tensor) -> Tensor:
        calls.append(1)
        if mask.shape != (want := embedded.shape[:2]):
            raise ValueError(f"the mask has the shape {tuple(mask.shape)}, expected {tuple(want)}")
        places = parts.position_embeddings(torch.arange(embedded.shape[1]))
        x = parts.LayerNorm(embedded + places + parts.token_type_embeddings.weight[0])
        return bert.encoder(x, mask[:, None, None, :].bool())

    return encode, parts.word_embeddings, calls


def a_batch(lengths: tuple[int, ...], n: int) -> tuple[Tensor, Tensor, Tensor]:
    """A prompt, and sentences of these lengths, padded at the right with token 0, with their mask."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randn(n, 32), torch.randint(1, 50, mask.shape) * mask, mask


def distances(vectors: Callable[..., Tensor], lengths: tuple[int, ...], n: int) -> list[list[str]]:
    """A row for each sentence: how far its vector in the batch is from its vector alone."""
    (encode, embed, _), (P, tokens, mask), rows = a_model(0), a_batch(lengths, n), []
    together = vectors(encode, embed, P, tokens, mask)
    for i, length in enumerate(lengths):
        alone = vectors(encode, embed, P, tokens[i : i + 1, :length], mask[i : i + 1, :length])[0]
        rows.append([f"{i + 1}", length, f"{(together[i] - alone).norm():.2f}", f"{alone.norm():.2f}"])
    return rows


Case = record("name lengths n")
CASES = [
    Case("one sentence", (5,), 3),
    Case("three sentences of one length", (4, 4, 4), 3),
    Case("three sentences with padding", (6, 3, 4), 2),
    Case("one virtual token, two sentences", (5, 2), 1),
    Case("more virtual tokens than text", (2, 1, 2), 6),
    Case("a sentence of one token", (1, 7), 3),
]


def observe(mended_vectors, case: Case) -> dict:
    (encode, embed, calls), (P, tokens, mask) = a_model(case.seed), a_batch(case.lengths, case.n)
    tokens[:, :3:2] = 0  # only the mask says what is padding: words have its id, and it has the id of a word
    given = {"tokens": tokens.where(mask, 7), "mask": mask}
    own = {name: x.clone() for name, x in given.items()}
    got = mended_vectors(encode, embed, P.requires_grad_(), *own.values())
    changed = [f"`{name}` has changed" for name in own if not own[name].equal(given[name])]
    found = {"same": "\n".join(changed), "vectors": got, "calls": len(calls)}
    if not getattr(got, "requires_grad", False):
        return found | {"reached": "backward does not reach `P`"}
    got.square().sum().backward()
    return found | {"gradient": P.grad}
