"""The engine: every request gets the tokens that it gets alone, and the cache holds what the simulator predicts."""

import pytest
import torch

from course_lib.attention.engine import Engine, Request
from course_lib.attention.paged import OutOfBlocks, PagedCache
from course_lib.models.generate import generate
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from simulator.predict.serving import Arrival, serve_in_blocks

VOCABULARY = 50


@pytest.fixture(scope="module", params=["gpt", "llama"])
def model(request):
    torch.manual_seed(0)
    if request.param == "gpt":
        made = GPT(
            GPTConfig.tiny(vocab_size=VOCABULARY, num_layers=2, num_heads=4, hidden_size=32, max_length=64)
        )
    else:
        made = Llama(
            LlamaConfig.tiny(
                vocab_size=VOCABULARY,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                max_position_embeddings=64,
            )
        )
    for parameter in made.parameters():  # logits far apart: rounding decides nothing
        torch.nn.init.normal_(parameter, std=0.3)
    return made.double().eval()


def cache_for(model, blocks, block_size):
    kv_heads = getattr(model.config, "num_key_value_heads", 4)
    return PagedCache(2, blocks, block_size, kv_heads, 8, dtype=torch.float64)


def some_requests(count=7, beginning=0, seed=1):
    draw = torch.Generator().manual_seed(seed)
    number = lambda low, high: int(torch.randint(low, high, (), generator=draw))  # noqa: E731
    common = torch.randint(VOCABULARY, (beginning,), generator=draw).tolist()
    return [
        Request(
            common + torch.randint(VOCABULARY, (number(1, 14),), generator=draw).tolist(),
            number(1, 12),
            2 * i,
        )
        for i in range(count)
    ]


def alone(model, requests):
    return [generate(model, [request.prompt], request.new_tokens)[0] for request in requests]


@pytest.mark.parametrize(
    ("blocks", "block_size", "options"),
    [
        (40, 4, {}),
        (9, 4, {}),
        (25, 1, {}),
        (3, 32, {}),
        (12, 4, {"continuous": False}),
        (9, 4, {"share_prefixes": True}),
    ],
)
def test_each_request_gets_what_it_gets_alone(model, blocks, block_size, options):
    requests = some_requests(beginning=6 if options.get("share_prefixes") else 0)
    engine = Engine(model, cache_for(model, blocks, block_size), **options)
    assert engine.run(requests) == alone(model, requests)
    assert engine.cache.allocator.free_blocks == blocks
    if blocks in (9, 25):
        assert engine.preempted
    if not options:
        arrivals = [Arrival(len(request.prompt), request.new_tokens, request.step) for request in requests]
        assert engine.history == serve_in_blocks(arrivals, blocks, block_size)


def test_a_common_beginning_is_stored_and_computed_once(model):
    """20 tokens of 24 are common: five requests compute them once, and each adds its own four."""
    beginning = list(range(20))
    requests = [Request([*beginning, 30 + i, 31, 32, 33], 3) for i in range(5)]
    engine = Engine(model, cache_for(model, 40, 4), share_prefixes=True)
    assert engine.run(requests) == alone(model, requests)
    assert engine.computed == 20 + 5 * 4 + 5 * 2
    assert engine.history.reserved == [4 * (5 + 5), 4 * (5 + 10), 4 * (5 + 10)]


def test_the_same_prompt_twice_copies_only_the_last_block(model):
    prompt = list(range(10))
    engine = Engine(model, cache_for(model, 40, 4), share_prefixes=True)
    first, second = engine.run([Request(prompt, 6), Request(prompt, 6)])
    assert first == second == alone(model, [Request(prompt, 6)])[0]
    assert engine.history.steps[0][:2] == ((0, 4, 4, (0, 1)), (4, 4, 4, (0, 1)))
    assert [piece.holders for piece in engine.history.steps[0][2:]] == [(0,), (1,)]


def test_without_continuous_batching_newcomers_wait_for_the_slowest(model):
    requests = [Request([1, 2], 9, 0), Request([3], 2, 1), Request([4, 5], 2, 1)]
    steps = {}
    for continuous in (False, True):
        engine = Engine(model, cache_for(model, 12, 4), continuous=continuous)
        engine.run(requests)
        steps[continuous] = len(engine.history.steps)
    assert steps == {True: 9, False: 11}


def test_an_interrupted_run_gives_its_blocks_back(model, monkeypatch):
    engine = Engine(model, cache_for(model, 12, 4))
    monkeypatch.setattr(engine, "_record", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.run([Request([1, 2, 3], 4)])
    assert engine.cache.allocator.free_blocks == 12


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([], 3), "request 0 has 0 tokens and asks for 3 more; each must be at least 1."),
        (Request([1], 0), "request 0 has 1 tokens and asks for 0 more"),
        (Request([1] * 9, 9), "request 0 fills 5 blocks; the cache has 4."),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(model, request_, message):
    with pytest.raises(ValueError, match=message):
        Engine(model, cache_for(model, 4, 4)).run([request_])
    assert not issubclass(OutOfBlocks, ValueError)
