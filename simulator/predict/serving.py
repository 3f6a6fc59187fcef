"""Serving, step by step: which requests are in the KV cache, and which slots each of them has.

In a step every request in the cache gets one more token. Requests that wait are admitted in the order in which they
came, as long as there is room. A new request's prompt is computed in the step of its admission, which also gives its
first token; so with ``new_tokens`` = n it is there for n steps, and ends with prompt + n - 1 tokens in the cache.
Nothing is computed here but numbers of slots. ``course_lib/attention/engine.py`` serves with a model by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from random import Random

from simulator.inputs.checks import at_least, positive
from simulator.ledgers.cache import CacheHistory, Piece


@dataclass(frozen=True)
class Arrival:
    """A request: tokens of its prompt, tokens to generate, and the step at which it comes."""

    prompt: int
    new_tokens: int
    step: int = 0

    def __post_init__(self) -> None:
        at_least(1, prompt=self.prompt, new_tokens=self.new_tokens)
        at_least(0, step=self.step)

    @property
    def cached(self) -> int:
        """Tokens in the cache at its last step: the last token that is generated needs no place."""
        return self.prompt + self.new_tokens - 1


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens: the last one may be partly empty."""
    at_least(0, tokens=tokens)
    at_least(1, block_size=block_size)
    return -(-tokens // block_size)


def power_of_two(tokens: int) -> int:
    """The number, rounded up to a power of two."""
    at_least(1, tokens=tokens)
    return 1 << (tokens - 1).bit_length()


def serve_contiguous(
    arrivals: Sequence[Arrival], slots: int, region: Callable[[Arrival], int], every: int = 1
) -> CacheHistory:
    """Each request has one region of neighbouring slots, from its admission to its end.

    A region begins at a multiple of its own length, as a buddy allocator places it.

    Args:
        arrivals: in the order in which they come.
        slots: of the cache.
        region: how many slots are reserved for a request, at least as many as it will fill.
        every: the history has only each step whose number is a multiple of this.
    """
    at_least(1, slots=slots, every=every)
    sizes = [region(arrival) for arrival in arrivals]
    for number, (arrival, size) in enumerate(zip(arrivals, sizes, strict=True)):
        if not arrival.cached <= size <= slots:
            raise ValueError(
                f"request {number} fills {arrival.cached} slots and has a region of {size}; "
                f"choose a region of at least that, and at most the {slots} slots of the cache"
            )
    return _serve(arrivals, slots, _Regions(slots, sizes), every)


class _Regions:
    def __init__(self, slots: int, sizes: Sequence[int]) -> None:
        self.slots, self.sizes = slots, sizes
        self.starts: dict[int, int] = {}  # request -> the start of its region
        self.refused: int | None = None  # the request for which nothing was free when last tried

    def admit(self, number: int, tokens: int) -> bool:
        if number == self.refused:
            return False
        size = self.sizes[number]
        for start in range(0, self.slots - size + 1, size):
            if all(s + self.sizes[n] <= start or s >= start + size for n, s in self.starts.items()):
                self.starts[number] = start
                return True
        self.refused = number
        return False

    def grow(self, running: dict[int, int]) -> int | None:
        return None  # the region is long enough

    def give_back(self, number: int) -> None:
        del self.starts[number]
        self.refused = None

    def pieces(self, held: dict[int, int]) -> list[Piece]:
        return [Piece(self.starts[n], self.sizes[n], tokens, (n,)) for n, tokens in held.items()]


def serve_in_blocks(
    arrivals: Sequence[Arrival], blocks: int, block_size: int, every: int = 1
) -> CacheHistory:
    """Each request has as many blocks as its tokens fill, the last one partly.

    When too few blocks are free for one more token each, the request that was admitted last gives its blocks back and
    waits again, before all others; its tokens so far are then computed again with its prompt.
    """
    at_least(1, blocks=blocks, block_size=block_size, every=every)
    for number, arrival in enumerate(arrivals):
        if blocks_for(arrival.cached, block_size) > blocks:
            raise ValueError(
                f"request {number} fills {blocks_for(arrival.cached, block_size)} blocks, more than the {blocks} "
                "of the cache; give more blocks"
            )
    return _serve(arrivals, blocks * block_size, _Blocks(blocks, block_size), every)


class _Blocks:
    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size, self.tables = block_size, {}
        self.free = list(reversed(range(blocks)))  # the last is taken first

    def admit(self, number: int, tokens: int) -> bool:
        if blocks_for(tokens, self.block_size) > len(self.free):
            return False
        self.tables[number] = []
        self._take(number, tokens)
        return True

    def _take(self, number: int, tokens: int) -> None:
        while len(self.tables[number]) * self.block_size < tokens:
            self.tables[number].append(self.free.pop())

    def grow(self, running: dict[int, int]) -> int | None:
        """One slot more for each request, or the number of the one that must leave first."""
        needed = sum(-(-(t + 1) // self.block_size) - len(self.tables[n]) for n, t in running.items())
        if needed > len(self.free):
            return next(reversed(running))
        for number, tokens in running.items():
            self._take(number, tokens + 1)
        return None

    def give_back(self, number: int) -> None:
        self.free += self.tables.pop(number)

    def pieces(self, held: dict[int, int]) -> list[Piece]:
        size = self.block_size
        return [
            Piece(block * size, size, min(size, tokens - i * size), (number,))
            for number, tokens in held.items()
            for i, block in enumerate(self.tables[number])
        ]


def _serve(arrivals: Sequence[Arrival], slots: int, memory: _Regions | _Blocks, every: int) -> CacheHistory:
    waiting = sorted(range(len(arrivals)), key=lambda number: arrivals[number].step)
    running: dict[int, int] = {}  # request -> tokens in the cache, in order of admission
    computed = [arrival.prompt for arrival in arrivals]  # tokens that must be in the cache after an admission
    steps, queue, now = [], [], 0
    while waiting or running:
        while (last := memory.grow(running)) is not None:
            memory.give_back(last)
            computed[last] = running.pop(last) + 1
            waiting.insert(0, last)
        running = {number: tokens + 1 for number, tokens in running.items()}
        while waiting and arrivals[waiting[0]].step <= now and memory.admit(waiting[0], computed[waiting[0]]):
            number = waiting.pop(0)
            running[number] = computed[number]
        if now % every == 0:
            steps.append(tuple(sorted(memory.pieces(running))))
            queue.append(sum(arrivals[number].step <= now for number in waiting))
        now += 1
        for number in [n for n, tokens in running.items() if tokens == arrivals[n].cached]:
            memory.give_back(number)
            del running[number]
    return CacheHistory(slots, tuple(steps), tuple(queue))


def conversation_lengths(
    count: int, prompt: float, answer: float, longest: int, seed: int = 0
) -> list[Arrival]:
    """Requests with lengths as people write them: many are short, a few are very long (log-normal).

    Args:
        count: of requests.
        prompt, answer: the means of their tokens.
        longest: tokens that a prompt and its answer have together at most.
    """
    at_least(1, count=count)
    at_least(0, seed=seed)
    at_least(2, longest=longest)
    positive(prompt=prompt, answer=answer)
    draw, spread = Random(seed), 1.0

    def length(mean: float) -> int:
        return max(1, round(draw.lognormvariate(log(mean) - spread**2 / 2, spread)))

    found = []
    while len(found) < count:
        arrival = Arrival(length(prompt), length(answer))
        if arrival.prompt + arrival.new_tokens <= longest:
            found.append(arrival)
    return found
