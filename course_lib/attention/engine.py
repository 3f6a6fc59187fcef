"""A small server of requests: continuous batching (Orca, OSDI 2022) over a paged cache (arXiv:2309.06180).

A step gives one more token to every request that is in the batch. Requests that have ended leave after the step, and
those that wait come in as soon as there are blocks for their prompts, without waiting for the rest of the batch.

``simulator/predict/serving.py`` predicts by the same rules which request has which block at which step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from course_lib.attention.paged import BlockTable, OutOfBlocks, PagedCache
from course_lib.attention.paged_batch import PagedBatch
from simulator.ledgers.cache import CacheHistory, Piece


@dataclass(frozen=True)
class Request:
    """What is asked for: a prompt, how many tokens to generate, and the step at which it comes."""

    prompt: Sequence[int]
    new_tokens: int
    step: int = 0


@dataclass(eq=False)
class _Sequence:
    """A request on its way: its tokens so far and, while it is in the batch, the table of those in the cache."""

    number: int
    request: Request
    tokens: list[int]
    table: BlockTable = field(default_factory=BlockTable)

    @property
    def ended(self) -> bool:
        return len(self.tokens) == len(self.request.prompt) + self.request.new_tokens


class Engine:
    """Serves requests with one model and one paged cache. The likeliest token is always taken.

    Args:
        model: ``model(tokens, cache=…)`` gives logits: the course's GPT or Llama.
        cache: with as many layers, heads and dtype as the model's keys and values have.
        share_prefixes: a request whose tokens begin as those of one in the batch shares the blocks of that beginning.
        continuous: False: nobody comes in before all of the batch have ended (static batching, for comparison).
    """

    def __init__(
        self, model: nn.Module, cache: PagedCache, *, share_prefixes: bool = False, continuous: bool = True
    ) -> None:
        self.model, self.cache = model.eval(), cache
        self.share_prefixes, self.continuous = share_prefixes, continuous
        self.waiting: list[_Sequence] = []
        self.running: list[_Sequence] = []  # in order of admission
        self.computed = 0  # tokens that went through the model
        self.preempted = 0  # how often a request had to leave the cache before its end
        self._steps: list[tuple[Piece, ...]] = []
        self._queue: list[int] = []

    @torch.no_grad()
    def run(self, requests: Sequence[Request]) -> list[list[int]]:
        """Serve the requests until all have ended; for each the tokens that were generated.

        Raises:
            ValueError: a prompt or the number of new tokens is empty, or a request fills more blocks than there are.
        """
        sequences = [_Sequence(n, request, list(request.prompt)) for n, request in enumerate(requests)]
        for sequence in sequences:
            self._check(sequence)
        self.waiting = sorted(sequences, key=lambda sequence: sequence.request.step)
        self._steps, self._queue, self.computed, self.preempted = [], [], 0, 0
        try:
            while self.waiting or self.running:
                self.step()
        finally:  # an interrupted run gives its blocks back, too
            for sequence in self.running:
                self.cache.free(sequence.table)
            self.running = []
        return [sequence.tokens[len(sequence.request.prompt) :] for sequence in sequences]

    def step(self) -> None:
        """One more token for each request in the batch, then newcomers; those that have ended leave."""
        self._make_room()
        if self.running:
            self._decode(self.running)
        if self.continuous or not self.running:
            self._admit()
        self._record()
        for sequence in [s for s in self.running if s.ended]:
            self.cache.free(sequence.table)
            self.running.remove(sequence)

    def _make_room(self) -> None:
        """While a token each does not fit, the newest request leaves; its tokens will be computed again."""
        while self.running:
            tables = [sequence.table for sequence in self.running]
            if self.cache.blocks_to_append(*tables) <= self.cache.allocator.free_blocks:
                return
            newest = self.running.pop()
            self.cache.free(newest.table)
            self.waiting.insert(0, newest)
            self.preempted += 1

    def _admit(self) -> None:
        """Requests in the order in which they came, while there are blocks for all their tokens so far."""
        while self.waiting and self.waiting[0].request.step <= len(self._steps):
            newcomer = self.waiting[0]
            newcomer.table = self._shared_beginning(newcomer)
            try:
                self._forward([newcomer], [newcomer.tokens[newcomer.table.length :]])
            except OutOfBlocks:
                self.cache.free(newcomer.table)
                return
            self.running.append(self.waiting.pop(0))

    def _shared_beginning(self, newcomer: _Sequence) -> BlockTable:
        """A table with the longest beginning that is in the cache already; the last token is always left to compute."""
        if not self.share_prefixes or not self.running:
            return BlockTable()
        common = {
            s: _common(newcomer.tokens[:-1], s.tokens[: s.table.length]) for s in reversed(self.running)
        }
        nearest = max(common, key=common.get)
        return self.cache.fork(nearest.table, common[nearest])

    def _decode(self, sequences: Sequence[_Sequence]) -> None:
        """The last token of each goes in; all are one batch, whatever their lengths."""
        self._forward(sequences, [sequence.tokens[-1:] for sequence in sequences])

    def _forward(self, sequences: Sequence[_Sequence], tokens: Sequence[Sequence[int]]) -> None:
        inputs = torch.tensor(tokens, device=self.cache.keys.device)  # (batch, seq)
        logits: Tensor = self.model(inputs, cache=PagedBatch(self.cache, [s.table for s in sequences]))
        self.computed += inputs.numel()
        for sequence, token in zip(sequences, logits[:, -1].argmax(-1).tolist(), strict=True):
            sequence.tokens.append(token)

    @property
    def history(self) -> CacheHistory:
        """What the cache held at every step of the last run."""
        slots = len(self.cache.allocator.references) * self.cache.block_size
        return CacheHistory(slots, tuple(self._steps), tuple(self._queue))

    def _record(self) -> None:
        size, holders, tokens = self.cache.block_size, {}, {}
        for sequence in self.running:
            for i, block in enumerate(sequence.table.blocks):
                holders.setdefault(block, []).append(sequence.number)
                tokens[block] = max(tokens.get(block, 0), min(size, sequence.table.length - i * size))
        pieces = (Piece(b * size, size, tokens[b], tuple(sorted(holders[b]))) for b in sorted(holders))
        self._queue.append(sum(s.request.step <= len(self._steps) for s in self.waiting))
        self._steps.append(tuple(pieces))

    def _check(self, sequence: _Sequence) -> None:
        request, number = sequence.request, sequence.number
        if not request.prompt or request.new_tokens < 1:
            raise ValueError(
                f"request {number} has {len(request.prompt)} tokens and asks for {request.new_tokens} more; "
                "each must be at least 1."
            )
        filled = len(request.prompt) + request.new_tokens - 1
        needed, blocks = -(-filled // self.cache.block_size), len(self.cache.allocator.references)
        if needed > blocks:
            raise ValueError(f"request {number} fills {needed} blocks; the cache has {blocks}.")


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens are equal from the beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
