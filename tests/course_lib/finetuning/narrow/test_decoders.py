import pytest
import torch

from course_lib.finetuning.side import add_side
from course_lib.models.bart import Bart, BartConfig
from course_lib.models.generate import generate
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig

SEQ = 7


def llama():
    return Llama(LlamaConfig.tiny(vocab_size=31, hidden_size=16, intermediate_size=16, num_hidden_layers=2))


def bart():
    return Bart(BartConfig.tiny(vocab_size=31, d_model=16, dropout=0.3, attention_dropout=0.3))


def gpt():
    return GPT(GPTConfig.tiny(vocab_size=31, hidden_size=16, num_layers=2, dropout=0.3))


def inputs(model):
    g = torch.Generator().manual_seed(0)
    tokens, other = torch.randint(2, 31, (2, 3, SEQ), generator=g)
    return (
        (tokens,) if isinstance(model, Llama | GPT) else (tokens, other, torch.ones(3, SEQ, dtype=torch.long))
    )


@pytest.mark.parametrize("make", [llama, gpt, bart])
def test_the_result_is_a_blend_and_backward_stays_outside_of_the_base(make):
    torch.manual_seed(0)
    model = make()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    base = model.eval()(*inputs(model))
    blend = add_side(model, layers=1, hidden_size=8, alpha=0.75)
    seen = {}
    decoder = {llama: lambda: model.model, gpt: lambda: model.norm, bart: lambda: model.model.decoder}[make]()
    blend.side.register_forward_hook(lambda module, args, S: seen.update(S=S))
    decoder.register_forward_hook(lambda module, args, R: seen.update(R=R), prepend=False)
    result = model.train()(*inputs(model))
    head = model.head if make is gpt else model.lm_head
    bias = getattr(model, "final_logits_bias", 0.0)
    B = (seen["R"] - 0.25 * seen["S"]) / 0.75
    torch.testing.assert_close(head(B) + bias, base, rtol=1e-4, atol=1e-5)  # without dropout, in training too
    torch.testing.assert_close(result, head(0.75 * B + 0.25 * seen["S"]) + bias, rtol=1e-4, atol=1e-5)
    result.square().mean().backward()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {name for name, p in model.named_parameters() if p.grad is not None}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith("blend.")}
    assert blend.alpha.item() == pytest.approx(0.75)


def test_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="0 layers of width 8"):
        add_side(llama(), layers=0, hidden_size=8)
    with pytest.raises(ValueError, match="alpha starts at 1"):
        add_side(llama(), layers=1, hidden_size=8, alpha=1)
    with pytest.raises(ValueError, match="needs a Bert, BertClassifier, Llama, GPT or Bart; this is a Lin"):
        add_side(torch.nn.Linear(2, 2))
    model = llama()
    add_side(model, layers=1, hidden_size=8)
    with pytest.raises(ValueError, match="has a side network already"):
        add_side(model, layers=1, hidden_size=8)
    with pytest.raises(ValueError, match="generate with use_cache=False"):
        generate(model, [[3, 4]], 1)
    assert len(generate(model, [[3, 4]], 2, use_cache=False)[0]) == 2
