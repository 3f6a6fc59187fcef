"""Paged attention by hand: keys and values of many sequences in one
memory, cut into blocks (Kwon et al., arXiv:2309.06180).

While a model generates, it keeps the keys and values of all tokens so
far: 2 l h numbers a token, in l layers of width h. Three rungs:

    contiguous        a row for each sequence, as long as it may become;
                      a second sample of a prompt copies its row
    blocks, gathered  a sequence lists its blocks, and takes another one
                      when the last is full; attention first copies them
                      into one row
    blocks            attention goes from block to block, and joins them
                      by the online softmax (arXiv:1805.02867)

So less than a block of a sequence is empty, and sequences may list the
same block: of one prompt there is one copy, until somebody must write
into its last block, and gets a copy of that (copy on write).

Shapes: ``places`` are the tokens that a row or a block has room for.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class Table:
    """One sequence: where its tokens are, in their order."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0  # tokens


class Contiguous:
    """First rung: each sequence has one block, as long as it may become
    (``longest`` tokens), and shares it with nobody."""

    def __init__(self, model: nn.Module, sequences: int, longest: int):
        self.allocate(model, sequences, longest)

    def allocate(self, model: nn.Module, blocks: int, places: int):
        layers, size = (
            len(model.blocks),
            model.blocks[0].attention.head_size,
        )
        w = model.head.weight
        shape = (layers, 2, blocks, places, w.shape[1] // size, size)
        self.kv = w.detach().new_zeros(shape)  # keys, values
        self.places = places
        self.users = [0] * blocks  # sequences that list a block
        self.most = 0  # blocks in use at a time

    def take(self) -> int:
        if 0 not in self.users:
            # Production counts first, so that nothing is half done.
            raise MemoryError(f"all {len(self.users)} blocks are used")
        block = self.users.index(0)
        self.users[block] = 1
        self.most = max(self.most, len(self.users) - self.users.count(0))
        return block

    def copy(self, block: int) -> int:
        new = self.take()
        self.kv[:, :, new] = self.kv[:, :, block]
        return new

    def fork(self, table: Table) -> Table:
        """A second sequence that begins with the same tokens."""
        copies = [self.copy(block) for block in table.blocks]
        return Table(copies, table.length)

    def free(self, table: Table) -> None:
        for block in table.blocks:
            self.users[block] -= 1
        table.blocks, table.length = [], 0

    def grow(self, table: Table, tokens: int) -> None:
        table.length += tokens
        while len(table.blocks) * self.places < table.length:
            table.blocks.append(self.take())

    # What the model asks for in a forward of some of the sequences.

    def of(self, tables: list[Table]) -> "Contiguous":
        self.tables = tables
        return self

    def extend(self, tokens: Tensor) -> Tensor:
        """Room for tokens (batch, seq); returns their positions."""
        for table in self.tables:
            self.grow(table, tokens.shape[1])
        most = max(len(table.blocks) for table in self.tables)
        rows = [
            t.blocks + [0] * (most - len(t.blocks)) for t in self.tables
        ]
        self.rows = torch.tensor(rows, device=tokens.device)
        end = tokens.new_tensor([[t.length] for t in self.tables])
        new = torch.arange(-tokens.shape[1], 0, device=tokens.device)
        self.positions = end + new  # (batch, seq)
        return self.positions

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor):
        """Keeps k and v; all are (batch, heads, seq, size)."""
        block = self.rows.gather(1, self.positions // self.places)
        place = self.positions % self.places
        for kept, new in zip(self.kv[layer], (k, v), strict=True):
            kept[block, place] = new.transpose(1, 2)
        return self.attention(q, *self.kv[layer])

    def attention(self, q: Tensor, keys: Tensor, values: Tensor):
        """keys, values: (blocks, places, heads, size)."""
        k, v = (
            x[self.rows].flatten(1, 2).transpose(1, 2)
            for x in (keys, values)
        )  # (batch, heads, all places of a row, size)
        return self.scores(q, k, 0).softmax(-1) @ v

    def scores(self, q: Tensor, k: Tensor, first: int) -> Tensor:
        """Of keys at the positions from ``first`` on. Hidden is what
        comes later, and so what is empty or another sequence's."""
        S = q @ k.mT / q.shape[-1] ** 0.5
        key = torch.arange(first, first + k.shape[2], device=q.device)
        later = key > self.positions[:, None, :, None]
        return S.masked_fill(later, torch.finfo(S.dtype).min)


class Gathered(Contiguous):
    """Second rung: many small blocks, which sequences may share."""

    size = 8  # tokens in a block

    def __init__(self, model: nn.Module, sequences: int, longest: int):
        self.allocate(
            model, sequences * -(-longest // self.size), self.size
        )

    def fork(self, table: Table) -> Table:
        for block in table.blocks:
            self.users[block] += 1  # nothing is copied
        return Table(list(table.blocks), table.length)

    def grow(self, table: Table, tokens: int) -> None:
        """The trick: who writes into a shared block gets its own."""
        if table.length % self.places:
            last = table.blocks[-1]
            if self.users[last] > 1:
                table.blocks[-1] = self.copy(last)
                self.users[last] -= 1
        super().grow(table, tokens)


class Paged(Gathered):
    """Third rung: no sequence is ever in one piece."""

    def attention(self, q: Tensor, keys: Tensor, values: Tensor):
        m = q.new_full(q.shape[:-1], torch.finfo(q.dtype).min)
        l, o = torch.zeros_like(m), torch.zeros_like(q)
        for i, blocks in enumerate(self.rows.T):  # (batch,)
            k, v = (x[blocks].transpose(1, 2) for x in (keys, values))
            S = self.scores(q, k, i * self.places)
            larger = torch.maximum(m, S.amax(-1))
            p = torch.exp(S - larger[..., None])
            shrink = torch.exp(m - larger)
            l = shrink * l + p.sum(-1)
            o = shrink[..., None] * o + p @ v
            m = larger
        return o / l[..., None]


@torch.no_grad()
def generate(model, prompts, samples, new_tokens, kind=Paged, seed=0):
    """``samples`` continuations of each prompt, a list of tokens.
    Returns the new tokens of each, (sequences, new), and the cache."""
    count = len(prompts) * samples
    cache = kind(model, count, max(map(len, prompts)) + new_tokens)
    tables, logits, found = [], [], []
    for prompt in prompts:
        table = Table()
        tokens = torch.tensor([prompt], device=model.head.weight.device)
        read = model(tokens, cache=cache.of([table]))[:, -1]
        tables += [
            table,
            *(cache.fork(table) for _ in range(samples - 1)),
        ]
        logits += [read] * samples
    last = torch.cat(logits)  # (sequences, vocab)
    draws = torch.Generator().manual_seed(seed)
    while True:
        weights = last.cpu().double().softmax(-1)
        found.append(torch.multinomial(weights, 1, generator=draws))
        if len(found) == new_tokens:
            return torch.cat(found, dim=1), cache
        tokens = found[-1].to(last.device)  # all sequences at once
        last = model(tokens, cache=cache.of(tables))[:, -1]


RUNGS = {
    "contiguous": {"kind": Contiguous},
    "blocks, gathered": {"kind": Gathered},
    "blocks": {"kind": Paged},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand.generate import main

    main(generate, RUNGS)
