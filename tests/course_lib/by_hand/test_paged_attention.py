"""Paged attention by hand: the same texts and logits as without a cache, in no more blocks than are needed."""

import pytest
import torch

from course_lib.attention.paged import BlockTable, PagedCache
from course_lib.attention.paged_batch import PagedBatch
from course_lib.by_hand.paged_attention import RUNGS, Contiguous, Gathered, Paged, Table, generate
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.kv_cache import KVCache
from course_lib.observe.by_hand.generate import blocks_needed
from course_lib.runtime import current_device

PROMPTS = [[3, 1, 4], [2] * 8, list(range(13)), [28]]  # blocks have 8 places
KINDS = [Contiguous, Gathered, Paged]
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []


def gpt():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(vocab_size=29, max_length=40, num_layers=2, hidden_size=24)).double()
    for w in model.parameters():
        torch.nn.init.normal_(w, std=0.3)
    return model.to(current_device()).eval()


@torch.no_grad()
def without_cache(model, samples, new_tokens):
    """The same draws, every token computed again each time."""
    texts = [list(prompt) for prompt in PROMPTS for _ in range(samples)]
    draws = torch.Generator().manual_seed(0)
    for _ in range(new_tokens):
        last = [model(torch.tensor([text], device=current_device()))[0, -1] for text in texts]
        drawn = torch.multinomial(torch.stack(last).cpu().softmax(-1), 1, generator=draws)
        for text, token in zip(texts, drawn.flatten().tolist(), strict=True):
            text.append(token)
    return torch.tensor([text[-new_tokens:] for text in texts])


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("name", RUNGS)
def test_texts_are_those_of_a_model_without_a_cache(name, samples):
    model = gpt()
    found, cache = generate(model, PROMPTS, samples, 20, **RUNGS[name])
    torch.testing.assert_close(found, without_cache(model, samples, 20))
    assert len(set(map(tuple, found.tolist()))) == len(found)  # samples differ
    assert cache.most == blocks_needed([len(p) for p in PROMPTS], samples, 20, cache.places)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_those_over_contiguous_and_production_caches(kind):
    """Two sequences of other lengths, then several tokens of both at once: a step in the middle of blocks."""
    model = gpt()
    tokens = torch.randint(29, (2, 5), device=current_device())
    cache, tables = kind(model, 2, 20), [Table(), Table()]
    theirs = PagedCache(2, 9, 4, 4, 6, dtype=torch.float64, device=current_device())
    their_tables = [BlockTable(), BlockTable()]
    alone = [KVCache(20), KVCache(20)]
    for prompt, *places in zip((PROMPTS[0], PROMPTS[2]), tables, their_tables, alone, strict=True):
        text = torch.tensor([prompt], device=current_device())
        found = model(text, cache=cache.of([places[0]]))
        for other in (PagedBatch(theirs, [places[1]]), places[2]):
            torch.testing.assert_close(found, model(text, cache=other), rtol=0, atol=1e-11)
    found = model(tokens, cache=cache.of(tables))
    production = model(tokens, cache=PagedBatch(theirs, their_tables))
    contiguous = torch.cat([model(row[None], cache=one) for row, one in zip(tokens, alone, strict=True)])
    torch.testing.assert_close(found, production, rtol=0, atol=1e-11)
    torch.testing.assert_close(found, contiguous, rtol=0, atol=1e-11)


def test_a_shared_block_is_copied_when_somebody_writes_into_it():
    model = gpt()
    cache, table = Paged(model, 3, 24), Table()
    cache.grow(table, 13)
    cache.kv[:, :, table.blocks] = 1.0
    second = cache.fork(table)
    assert (table.blocks, second.blocks, cache.users[:3]) == ([0, 1], [0, 1], [2, 2, 0])
    cache.grow(second, 1)
    assert (table.blocks, second.blocks, cache.users[:4]) == ([0, 1], [0, 2], [2, 1, 1, 0])
    assert (cache.kv[:, :, 2] == 1).all()
    cache.grow(table, 1)  # it is alone in its last block: nothing to copy
    assert table.blocks == [0, 1]
    cache.free(second)
    assert (second, cache.users[:4]) == (Table(), [1, 1, 0, 0])
    full = Table()
    cache.grow(full, 16)
    third = cache.fork(full)
    cache.grow(third, 1)  # a full block is never written into
    assert third.blocks[:2] == full.blocks


def test_without_a_free_block_one_sentence_says_so():
    cache = Paged(gpt(), 1, 8)
    with pytest.raises(MemoryError, match="all 1 blocks are used"):
        cache.grow(Table(), 9)
