"""FlashAttention in the course's models: the same losses, the bytes that the simulator predicts, the same names."""

import copy

import pytest
import torch
from torch import nn

from course_lib.attention.drop_in import FlashCore, use_flash_attention
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masks import causal_mask, padding_mask, prefix_mask
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.one_device.loop import train
from course_lib.one_device.recompute import apply_recompute
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.memory import attention_core_bytes, layer_bytes

SMALL = {"vocab_size": 30, "hidden_size": 16}


def gpt(dropout=0.0):
    return GPT(GPTConfig.tiny(**SMALL, num_layers=2, num_heads=2, dropout=dropout))


def llama():
    return Llama(LlamaConfig.tiny(**SMALL, intermediate_size=24, num_hidden_layers=2))


def bert():
    return BertClassifier(Bert(BertConfig.tiny(**SMALL, intermediate_size=24), pooler=True), 3)


def data(model):
    tokens, targets = torch.randint(30, (2, 4, 4, 11))
    if not isinstance(model, BertClassifier):
        return list(zip(tokens, targets, strict=True))
    mask = torch.arange(11) < torch.randint(3, 12, (4, 4, 1))
    return list(zip(tokens, mask, targets[..., 0] % 3, strict=True))


@pytest.mark.parametrize("make", [gpt, llama, bert])
def test_a_model_trains_to_the_same_losses(make):
    torch.manual_seed(0)
    model = make().double()
    flash = copy.deepcopy(model)
    names = use_flash_attention(flash)
    assert len(names) == 2
    assert all(name.endswith(".core") for name in names)
    assert list(flash.state_dict()) == list(model.state_dict())
    batches = data(model)
    losses = [train(m, batches, torch.optim.AdamW(m.parameters(), lr=1e-2), steps=4) for m in (model, flash)]
    assert losses[0][-1] != losses[0][0]
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-10, atol=0)
    for (name, a), b in zip(model.named_parameters(), flash.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8, msg=name)


def test_a_mask_takes_the_place_of_causality_as_in_the_models():
    torch.manual_seed(0)
    model = llama().eval()
    flash = copy.deepcopy(model)
    use_flash_attention(flash)
    tokens = torch.randint(30, (2, 11))
    for mask in (
        prefix_mask(4, 11) & padding_mask(torch.arange(11) < torch.tensor([[11], [7]])),
        causal_mask(11),
    ):
        torch.testing.assert_close(flash(tokens, mask=mask), model(tokens, mask=mask))


def test_dropout_is_taken_from_the_core_and_only_in_training():
    torch.manual_seed(0)
    model = gpt(dropout=0.3)
    flash = copy.deepcopy(model)
    use_flash_attention(flash)
    core = flash.blocks[0].attention.core
    assert (core.dropout, core.training) == (0.3, True)
    tokens = torch.randint(30, (2, 11))
    torch.testing.assert_close(flash.eval()(tokens), model.eval()(tokens))
    flash.train()
    gradients = []
    for recompute in (False, True):  # the core by itself, in the random state of its first forward
        again = copy.deepcopy(flash)
        if recompute:
            assert len(apply_recompute(again, "selective")) == 2
        torch.manual_seed(1)
        again(tokens).square().sum().backward()
        gradients.append([p.grad for p in again.parameters()])
    assert all(map(torch.equal, *gradients))
    torch.manual_seed(1)
    assert not torch.equal(flash(tokens), model.eval()(tokens))


def test_autograd_saves_the_bytes_that_the_simulator_predicts():
    """To the byte; the two fp32 numbers that each norm keeps for a token are not in the paper's formula."""
    batch, seq = 3, 24
    config = GPTConfig.tiny(**SMALL, num_heads=4, num_layers=1)
    shape = ModelShape(1, 16, 4, 30, seq, dropout=False)
    block = GPT(config).blocks[0]
    use_flash_attention(block)
    saved = sum(t.bytes for t in saved_tensors(block, torch.randn(batch, seq, 16)))
    norms = 2 * 2 * 4 * batch * seq
    assert saved - norms == layer_bytes(shape, Plan(micro_batch=batch, precision="fp32", attention="flash"))
    for dtype, precision in ((torch.float32, "fp32"), (torch.bfloat16, "mixed")):
        grouped = ModelShape(1, 64, 8, 30, seq, kv_heads=2, dropout=False)
        plan = Plan(micro_batch=batch, precision=precision, attention="flash")
        q, k, v = (torch.randn(batch, heads, seq, 8, dtype=dtype) for heads in (8, 2, 2))
        saved = sum(t.bytes for t in saved_tensors(FlashCore(causal=True), q, k, v))
        q_and_output, k_and_v = 2 * grouped.attention_width, 2 * grouped.kv_heads * grouped.head_size
        tensors = batch * seq * plan.itemsize * (q_and_output + k_and_v)
        assert saved == attention_core_bytes(grouped, plan) + tensors


def test_a_model_without_a_core_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"^Linear has no core of attention to replace: no CausalCore or "):
        use_flash_attention(nn.Linear(2, 2))
