"""Context parallelism of whole models: losses and gradients of one device, in fp64, and as many bytes as predicted."""

from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_lib.context_parallel.apply import apply_context_parallel
from course_lib.context_parallel.order import Cutter, Order, blocks_of_mask, mask_of_part
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.deepseek import Deepseek, DeepseekConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masked_words import BertMaskedWords
from course_lib.models.masks import causal_mask
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.pipeline.microbatches import sum_cross_entropy
from course_lib.runtime import launch
from course_lib.runtime.fork_server import preload
from course_lib.runtime.mesh import make_mesh
from simulator.inputs.plan import CONTEXT
from simulator.ledgers.traffic import Traffic
from simulator.predict.context_traffic import context_layer_traffic

preload("course_lib.context_parallel.apply")
SEQ, BATCH, LAYERS, HIDDEN, HEADS = 24, 3, 2, 24, 12
KV_HEADS = 4  # of the LLaMA: 3 ranks do not divide them


def gpt():
    return GPT(GPTConfig.tiny(vocab_size=31, num_layers=LAYERS, num_heads=HEADS, hidden_size=HIDDEN))


def llama():
    sizes = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    return Llama(LlamaConfig.tiny(vocab_size=31, hidden_size=HIDDEN, intermediate_size=36, **sizes))


def deepseek():
    """Keys and values of other widths: 8 and 6."""
    widths = {
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
    }
    sizes = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "first_k_dense_replace": LAYERS}
    return Deepseek(
        DeepseekConfig.tiny(vocab_size=31, hidden_size=HIDDEN, intermediate_size=36, **sizes, **widths)
    )


def masked_words():
    sizes = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 36}
    return BertMaskedWords(Bert(BertConfig.tiny(vocab_size=31, hidden_size=HIDDEN, **sizes)))


def documents(tokens):
    """Packed texts: nobody sees another document, and the second text ends with padding that nobody sees."""
    at = torch.arange(SEQ)
    ends = torch.tensor([[5, 11, 24], [1, 2, 20], [8, 16, 24]])
    number = (at >= ends[..., None]).sum(1)  # (batch, seq): of each token's document
    same = number[:, None, :, None] == number[:, None, None, :]
    return same & causal_mask(SEQ)


def padding(tokens):
    return (torch.arange(SEQ) < torch.tensor([[24], [3], [13]])).long()  # whole blocks of keys are hidden


CASES = {  # name -> (model, what it gets beside tokens)
    "gpt": (gpt, ()),
    "llama": (llama, ()),
    "gpt, documents": (gpt, (documents,)),
    "llama, documents": (llama, (documents,)),
    "deepseek": (deepseek, ()),
    "bert": (masked_words, ()),
    "bert, padding": (masked_words, (padding,)),
}


# Ranks, how keys come, and how many ranks deal out the heads of one part of the text.
# Of two ranks, all-to-all alone: there they divide the heads of keys, and three do not.
ON = {1: CONTEXT, 2: ("all-to-all",), 3: CONTEXT}
RUNS = [(ranks, context, 1) for ranks, several in ON.items() for context in several]
RUNS += [(4, "ring", 2), (4, "all-gather", 2)]


def make(name):
    torch.manual_seed(0)
    model = CASES[name][0]()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3 if p.dim() == 1 else 0.15)
    return model.double()


def batch(name):
    g = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(31, (2, BATCH, SEQ), generator=g)
    targets = targets.masked_fill(torch.rand(targets.shape, generator=g) < 0.2, -100)
    return tokens, *(mask(tokens) for mask in CASES[name][1]), targets


def gradients(model, *its_batch):
    *inputs, targets = its_batch
    loss = sum_cross_entropy(model(*inputs), targets)
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def on_a_rank():
    found, ranks = {}, dist.get_world_size()
    mesh = make_mesh({"parts": 2, "heads": 2} if ranks == 4 else {"cp": ranks})
    for name in CASES:
        for context in (context for number, context, _ in RUNS if number == ranks):
            model = make(name)
            cut = apply_context_parallel(model, mesh, context)
            with record_traffic() as log:
                loss, own = gradients(model, *cut(*batch(name)))
            found[name, context] = loss, own, log.traffic
    return found


@cache
def on_ranks(ranks):
    return launch(on_a_rank, ranks)


@cache
def on_one_device(name):
    return gradients(make(name), *batch(name))


@pytest.mark.parametrize(("ranks", "context", "ulysses"), RUNS)
@pytest.mark.parametrize("name", CASES)
def test_the_sum_over_ranks_is_that_of_one_device(name, ranks, context, ulysses):
    expected, theirs = on_one_device(name)
    losses, ours, _ = zip(*(found[name, context] for found in on_ranks(ranks)), strict=True)
    assert sum(losses).item() == pytest.approx(expected.item(), abs=1e-9)
    for key, gradient in theirs.items():
        total = sum(own[key] for own in ours)
        torch.testing.assert_close(total, gradient, rtol=0, atol=1e-9, msg=partial("{}: {}".format, key))


@pytest.mark.parametrize(("ranks", "context", "ulysses"), RUNS[len(CONTEXT) :])
@pytest.mark.parametrize("name", CASES)
def test_a_rank_sends_what_is_predicted(name, ranks, context, ulysses):
    kv_heads = KV_HEADS if name.startswith("llama") else HEADS
    if context == "all-to-all" and kv_heads % ranks:
        kv_heads *= ranks  # 3 copies of 4 heads
    own = results = BATCH * SEQ // ranks * HIDDEN
    keys = 2 * own * kv_heads // HEADS
    if name == "deepseek":
        own, results, keys = (own // HIDDEN * HEADS * size for size in (8, 6, 8 + 6))
    layer = context_layer_traffic(context, own, keys, ranks, 8, ulysses=ulysses, results=results)
    for found in on_ranks(ranks):
        assert found[name, context][2] == sum(layer * LAYERS, Traffic())


def test_a_mask_for_each_head_is_dealt_out_with_the_heads():
    order, mask = Order(2, causal=True, zigzag=True, sharing=2), torch.randn(1, 4, 8, 8)
    tokens = torch.zeros(1, 8)
    parts = replace(order, sharing=1)
    for rank in range(4):
        _, cut, _ = Cutter(order, rank, ["tokens", "mask"])(tokens, mask, tokens)
        blocks = blocks_of_mask(mask_of_part(cut, order, rank % 2, 2), 2, 4)
        seen = parts.cut(parts.dealt(mask, -1), rank // 2, -2).chunk(2, 1)[rank % 2]
        assert torch.equal(torch.cat([*blocks], -1), seen)


def test_neighbours_that_deal_out_heads_have_as_many_tokens_of_their_part():
    order = Order(2, causal=False, zigzag=False, sharing=3)
    assert [order.positions(2, rank).tolist() for rank in (0, 2, 3)] == [[0, 1], [4, 5], [6, 7]]
    with pytest.raises(
        ValueError, match="6 context-parallel ranks cannot share a text of 8 tokens in 6 equal"
    ):
        order.check(8)


def test_heads_are_dealt_out_once():
    two_axes = SimpleNamespace(ndim=2, size=lambda axis=None: 4 if axis is None else 2)
    with pytest.raises(ValueError, match="must be one of ring, all-gather"):
        apply_context_parallel(gpt(), two_axes, "all-to-all")
