"""Attention over block tables, against attention over the contiguous cache."""

import pytest
import torch
import torch.nn.functional as F

from course_lib.attention.paged import BlockTable, PagedCache, paged_attention
from course_lib.attention.paged_batch import PagedBatch

SIZE = 8


def filled(lengths, block_size, kv_heads, dtype, seed=0):
    """A cache whose free places hold NaN, and sequences that grew in turns, so that their blocks are mixed up."""
    torch.manual_seed(seed)
    cache = PagedCache(
        1, sum(-(-n // block_size) for n in lengths) + 1, block_size, kv_heads, SIZE, dtype=dtype
    )
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    tables = [BlockTable() for _ in lengths]
    for place in range(max(lengths)):
        for table, length in zip(tables, lengths, strict=True):
            if place < length:
                cache.append(table)
                cache.write(0, table, *torch.randn(2, 1, kv_heads, SIZE, dtype=dtype))
    return cache, tables


def contiguous(cache, table, q):
    """One sequence, gathered: ``q`` (heads, seq, size) against all its keys, in float64."""
    keys, values = (x.double().transpose(0, 1) for x in cache.read(0, table))
    mask = torch.ones(q.shape[1], table.length, dtype=torch.bool).tril(table.length - q.shape[1])
    return F.scaled_dot_product_attention(
        q.double()[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
    )[0]


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_equals_attention_over_the_contiguous_cache(block_size, heads, kv_heads, dtype, tolerance):
    lengths = [5, 1, 8, 16]
    cache, tables = filled(lengths, block_size, kv_heads, dtype)
    most = max(len(table.blocks) for table in tables)
    numbers = torch.tensor([t.blocks + tables[0].blocks[:1] * (most - len(t.blocks)) for t in tables])
    q = torch.randn(4, heads, 1, SIZE, dtype=dtype)
    got = paged_attention(q, cache.keys[0], cache.values[0], numbers, torch.tensor(lengths))
    assert got.dtype == dtype
    for row, (table, found) in enumerate(zip(tables, got, strict=True)):
        assert (found - contiguous(cache, table, q[row])).abs().max() < tolerance


def test_several_new_tokens_are_causal():
    cache, (table,) = filled([11], 4, 2, torch.float64)
    q = torch.randn(1, 4, 6, SIZE, dtype=torch.float64)
    got = paged_attention(q, cache.keys[0], cache.values[0], torch.tensor([table.blocks]), torch.tensor([11]))
    assert (got[0] - contiguous(cache, table, q[0])).abs().max() < 1e-12


def test_a_forked_sequence_and_its_parent_go_different_ways():
    cache, (parent,) = filled([6], 4, 1, torch.float64)
    child = cache.fork(parent)
    before = cache.read(0, parent)
    batch = PagedBatch(cache, [child])
    positions = batch.extend(torch.zeros(1, 1))
    q, k, v = torch.randn(3, 1, 1, 1, SIZE, dtype=torch.float64)
    got = batch.attend(0, q, k, v)
    assert (got[0] - contiguous(cache, child, q[0])).abs().max() < 1e-12
    assert positions.tolist() == [[6]]
    assert all(map(torch.equal, before, cache.read(0, parent)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda batch, x: batch.extend(torch.zeros(2, 1)), "the batch has 2 rows; there are 1 block tables"),
        (lambda batch, x: batch.attend(0, x, x, x, mask=x > 0), "leave the mask out"),
        (lambda batch, x: batch.attend(0, x, x.requires_grad_(), x), "under torch.no_grad"),
        (lambda batch, x: batch.attend(1, x, x, x), "the cache has 1 layers; the model has more"),
        (
            lambda batch, x: batch.attend(0, x, x.double(), x),
            r"made for 1 heads of 8 numbers, torch.float32; .* torch.float64",
        ),
        (lambda batch, x: batch.attend(0, x, x[..., :4], x), "made for 1 heads of 8 .* gives 1 heads of 4"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    batch = PagedBatch(PagedCache(1, 2, 4, 1, SIZE), [BlockTable()])
    with pytest.raises(ValueError, match=message):
        call(batch, torch.zeros(1, 1, 1, SIZE))
