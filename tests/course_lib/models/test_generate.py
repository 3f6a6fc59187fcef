"""Generation with a cache equals generation that computes every token again; the cache by its own rules."""

import pytest
import torch

from course_lib.models.falcon import Falcon, FalconConfig
from course_lib.models.generate import choose, generate
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.kv_cache import KVCache
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.published import CHATGLM

SMALL = {"vocab_size": 31, "hidden_size": 24}
MODELS = {
    "gpt": lambda: GPT(GPTConfig(**SMALL, max_length=32, num_layers=2, num_heads=3)),
    "llama, multi-head": lambda: llama(4),
    "llama, grouped": lambda: llama(2),
    "llama, multi-query": lambda: llama(1),
    "chatglm": lambda: llama(2, **CHATGLM, head_dim=8),
    "falcon": lambda: Falcon(
        FalconConfig(**SMALL, num_hidden_layers=2, num_attention_heads=6, max_position_embeddings=32)
    ),
}


def llama(kv_heads, **changes):
    sizes = {"intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 6}
    more = {"num_key_value_heads": kv_heads, "max_position_embeddings": 32}
    return Llama(LlamaConfig(**(SMALL | sizes | more | changes)))


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    model = MODELS[request.param]()
    for p in model.parameters():  # wide enough that the likeliest token is not always the same
        torch.nn.init.normal_(p, std=0.4)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("chunks", [[1] * 12, [5, 1, 6], [12], [11, 1]], ids=str)
def test_tokens_fed_in_chunks_give_the_logits_of_all_at_once(model, chunks):
    tokens = torch.randint(31, (3, 12))
    cache = KVCache(14)
    logits = torch.cat([model(chunk, cache=cache) for chunk in tokens.split(chunks, dim=1)], dim=1)
    torch.testing.assert_close(logits, model(tokens), rtol=1e-5, atol=1e-5)
    assert cache.filled == 12


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_generation_equals_generation_without_a_cache_for_unequal_prompts(model, temperature):
    prompts = [[1, 2, 3, 4, 5, 6, 7], [8], [9, 10, 11]]
    with_cache = generate(model, prompts, 9, temperature=temperature, seed=3)
    without = generate(model, prompts, 9, temperature=temperature, seed=3, use_cache=False)
    assert with_cache == without
    assert [len(row) for row in with_cache] == [9, 9, 9]
    assert with_cache != generate(model, prompts, 9, temperature=1.5, seed=4)


def test_a_sequence_ends_after_the_stop_token(model):
    [free], [other] = generate(model, [[5, 6]], 12), generate(model, [[7, 1, 2]], 12)
    stop = free[4]
    rows = generate(model, [[5, 6], [7, 1, 2]], 12, stop=stop)
    for row, whole in zip(rows, (free, other), strict=True):
        assert row == (whole[: whole.index(stop) + 1] if stop in whole else whole)


def test_the_cache_takes_what_its_shape_says(model):
    cache = KVCache(10)
    generate(model, torch.randint(31, (3, 4)), 6, cache=cache)
    layers, kv_heads, size = 2, cache.layers[0][0].shape[1], cache.layers[0][0].shape[3]
    assert (
        cache.bytes == 2 * layers * kv_heads * size * 4 * 10 * 3
    )  # keys and values, fp32, 10 tokens, 3 sequences
    assert cache.filled == 9  # the last token is never fed


def test_a_cache_on_the_meta_device_says_what_a_real_one_takes():
    config = LlamaConfig.tiny(num_key_value_heads=2)
    with torch.device("meta"):
        model = Llama(config).bfloat16()
    cache = KVCache(5)
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long, device="meta"), cache=cache)
        model(torch.zeros(1, 1, dtype=torch.long, device="meta"), cache=cache)
    assert cache.bytes == 5 * 2 * config.num_hidden_layers * 2 * config.head_dim * 2


def test_dropout_is_off_and_the_mode_comes_back():
    model = GPT(GPTConfig.tiny(dropout=0.5))
    assert generate(model, [[1, 2]], 5) == generate(model, [[1, 2]], 5)
    assert model.training


def test_the_draws_follow_the_temperature():
    logits = torch.tensor([0.0, 1.0, 2.0])
    draw = torch.Generator().manual_seed(0)
    counts = torch.bincount(torch.tensor([choose(logits, 0.5, draw) for _ in range(4000)]), minlength=3)
    torch.testing.assert_close(counts / 4000, torch.softmax(2 * logits, 0).float(), atol=0.03, rtol=0)


def test_bad_input_is_one_sentence():
    model = MODELS["gpt"]()
    for call, message in [
        (lambda: generate(model, [[1], []], 3), r"have \[1, 0\] tokens; each needs at least 1"),
        (lambda: generate(model, [], 3), r"the prompts have \[\] tokens"),
        (lambda: generate(model, [[1]], 0), "new_tokens is 0"),
        (lambda: generate(model, [[1]], 3, temperature=-1.0), "temperature is -1.0"),
        (lambda: generate(model, [[1], [2, 3]], 3, cache=KVCache(9)), "prompts of one length only"),
        (lambda: generate(model, [[1] * 30], 9), "33 tokens; this model has 32 positions"),
        (lambda: generate(model, [[1, 2]], 9, cache=KVCache(4)), "room for 4 tokens and holds 4: 1 more"),
        (lambda: KVCache(0), "at least 1 token"),
        (lambda: model(torch.ones(1, 2, dtype=torch.long), cache=KVCache(4)), r"torch.no_grad\(\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    cache = KVCache(9)
    generate(model, [[1, 2]], 2, cache=cache)
    with torch.no_grad(), pytest.raises(ValueError, match="holds 1 sequences, and 2 came"):
        model(torch.ones(2, 1, dtype=torch.long), cache=cache)
