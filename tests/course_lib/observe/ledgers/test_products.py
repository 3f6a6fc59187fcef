"""The products that full recomputation repeats: which, how large, and the same FLOPs as PyTorch's counter."""

import torch

from course_lib.models.bert import BertConfig, BertLayer
from course_lib.models.gpt import Block, GPTConfig
from course_lib.observe.ledgers.flops import count_flops
from course_lib.observe.ledgers.products import repeated_products


def test_a_gpt_block_repeats_all_products_but_the_last():
    batch, seq, hidden, heads = 2, 32, 16, 4
    block = Block(GPTConfig(num_layers=1, num_heads=heads, hidden_size=hidden, max_length=seq))
    x = torch.randn(batch, seq, hidden)
    products = repeated_products(block, x)
    names = [str(p.op) for p in products]
    assert len(names) == 6
    assert ["addmm" in name for name in names] == [True, True, True, False, True, True]
    tensor = 4 * batch * seq * hidden
    core = tensor + 4 * batch * heads * seq  # with the log of each row's sum
    assert [p.bytes for p in products] == [tensor, tensor, tensor, core, tensor, 4 * tensor]
    last = 2 * batch * seq * 4 * hidden * hidden
    assert sum(p.flops for p in products) == count_flops(block, x).forward - last
    assert all(parameter.grad is None for parameter in block.parameters())
    assert "forward" not in vars(block)


def test_a_bert_layer_repeats_the_last_one_too():
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 64}
    layer = BertLayer(BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    x = torch.randn(2, 8, 16)
    assert sum(p.flops for p in repeated_products(layer, x)) == count_flops(layer, x).forward
