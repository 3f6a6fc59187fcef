"""The paged cache: random operations against a model of Python lists, and the messages of what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.attention.paged import BlockAllocator, BlockTable, OutOfBlocks, PagedCache

# (operation, which sequence, how many tokens); "which" and "how many" are taken modulo what there is.
KINDS = ["new", "append", "append", "append to all", "fork", "free"]
OPERATIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 99), st.integers(1, 9)), max_size=30)


class Model:
    """What the cache should hold: one list of numbers a sequence, each token's number written into keys and values."""

    def __init__(self, blocks, block_size):
        self.cache = PagedCache(2, blocks, block_size, 1, 1, dtype=torch.float64)
        self.sequences, self.next_token = [], 1.0

    def apply(self, operation, which, tokens):
        if operation == "new" or not self.sequences:
            self.sequences.append((BlockTable(), []))
            return
        table, numbers = self.sequences[which % len(self.sequences)]
        if operation == "append":
            self.append([(table, numbers)], tokens)
        elif operation == "append to all":
            self.append(self.sequences, tokens)
        elif operation == "fork":
            shared = tokens % (len(numbers) + 1)
            self.sequences.append((self.cache.fork(table, shared), numbers[:shared]))
        else:
            self.cache.free(table)
            self.sequences = [pair for pair in self.sequences if pair[0] is not table]

    def append(self, sequences, tokens):
        tables = [table for table, _ in sequences]
        needed, free = self.cache.blocks_to_append(*tables, tokens=tokens), self.cache.allocator.free_blocks
        before = self.state()
        try:
            self.cache.append(*tables, tokens=tokens)
        except OutOfBlocks:
            assert needed > free
            assert self.state() == before  # nothing is lost
            return
        assert self.cache.allocator.free_blocks == free - needed
        for table, numbers in sequences:
            fresh = [self.next_token + i for i in range(tokens)]
            self.next_token += tokens
            numbers += fresh
            for layer in range(2):
                written = torch.tensor(fresh, dtype=torch.float64).view(-1, 1, 1) * (layer + 1)
                self.cache.write(layer, table, written, -written)

    def state(self):
        tables = [(list(table.blocks), table.length) for table, _ in self.sequences]
        return (
            tables,
            list(self.cache.allocator.references),
            self.cache.keys.tolist(),
            self.cache.values.tolist(),
        )

    def check(self):
        cache, size = self.cache, self.cache.block_size
        listed = [block for table, _ in self.sequences for block in table.blocks]
        references = cache.allocator.references
        assert references == [
            listed.count(block) for block in range(len(references))
        ]  # none leaked, none freed twice
        assert cache.allocator.free_blocks == references.count(0)
        for table, numbers in self.sequences:
            assert table.length == len(numbers)
            assert len(table.blocks) == -(-len(numbers) // size)  # at most one block is not full
            assert len(set(table.blocks)) == len(table.blocks)
            for layer in range(2):
                keys, values = cache.read(layer, table)
                assert keys.flatten().tolist() == [
                    n * (layer + 1) for n in numbers
                ]  # nobody sees another's tokens
                assert values.flatten().tolist() == [-n * (layer + 1) for n in numbers]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), OPERATIONS)
def test_random_operations(blocks, block_size, operations):
    model = Model(blocks, block_size)
    for operation in operations:
        model.apply(*operation)
        model.check()
    for table, _ in model.sequences:
        model.cache.free(table)
    assert model.cache.allocator.free_blocks == blocks


def test_a_fork_copies_one_block_and_only_when_one_of_the_two_writes():
    cache = PagedCache(1, 8, 4, 1, 1)
    parent = BlockTable()
    cache.append(parent, tokens=6)
    child = cache.fork(parent)
    assert child.blocks == parent.blocks == [0, 1]
    cache.append(child)
    assert child.blocks == [0, 2]
    assert cache.allocator.references[:3] == [2, 1, 1]
    cache.append(parent)  # now nobody else lists its last block
    assert parent.blocks == [0, 1]


def test_a_fork_at_the_end_of_a_block_needs_no_copy():
    cache = PagedCache(1, 4, 4, 1, 1)
    parent = BlockTable()
    cache.append(parent, tokens=7)
    child = cache.fork(parent, 4)
    assert cache.blocks_to_append(child) == 1
    cache.append(child)
    assert (parent.blocks, child.blocks) == ([0, 1], [0, 2])


def test_out_of_blocks_is_a_sentence():
    cache = PagedCache(1, 2, 4, 1, 1)
    table = BlockTable()
    with pytest.raises(OutOfBlocks, match=r"3 more blocks of 4 tokens are needed, and 2 of 2 are free\."):
        cache.append(table, tokens=9)
    cache.append(table, tokens=8)
    with pytest.raises(OutOfBlocks, match=r"all 2 blocks are in use\."):
        cache.allocator.allocate()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: BlockAllocator(0), "count is 0; at least 1 block is needed."),
        (lambda: PagedCache(1, 2, 0, 1, 1), "block_size is 0; at least 1 is needed."),
        (lambda: BlockAllocator(2).release(1), "block 1 is not in use"),
        (lambda: BlockAllocator(2).share(-1), "block -1 is not in use"),
        (lambda: PagedCache(1, 2, 4, 1, 1).append(BlockTable(), tokens=0), "tokens is 0; at least 1"),
        (lambda: PagedCache(1, 2, 4, 1, 1).fork(BlockTable(), 1), "tokens is 1; of this sequence 0 to 0"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
