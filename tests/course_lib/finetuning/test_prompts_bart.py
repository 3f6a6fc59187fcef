"""Prompts and prefixes in a BART: before the encoder's text, and in each of its attentions."""

import peft
import pytest
import torch
import transformers
from torch import nn

from course_lib.finetuning.prefix import add_deep_prompts, add_prefix
from course_lib.finetuning.prompt import add_prompt
from course_lib.models.bart import Bart, BartConfig
from course_lib.models.generate import BartWriter, generate

N, SEQ = 3, 7
SIZES = {"vocab_size": 31, "d_model": 16, "max_position_embeddings": 32}
MASK = (torch.arange(SEQ) < torch.tensor([[SEQ], [5], [3]])).long()


def text():
    return torch.randint(3, 31, (2, 3, SEQ), generator=torch.Generator().manual_seed(0))


def bart():
    torch.manual_seed(0)
    model = Bart(BartConfig.tiny(**SIZES))
    for p in model.parameters():
        nn.init.normal_(p, std=0.2)
    return model.double().eval()


def test_a_prompt_equals_pefts():
    ours, (tokens, read) = bart(), text()
    config = {k: v for k, v in vars(ours.config).items() if k != "final_logits_bias"}
    theirs = transformers.BartForConditionalGeneration(transformers.BartConfig(**config))
    theirs.double().load_state_dict(ours.state_dict())
    settings = peft.PromptTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=N)
    theirs = peft.get_peft_model(theirs, settings).double().eval()
    prompt, E = add_prompt(ours, N), theirs.prompt_encoder["default"].embedding.weight
    with torch.no_grad():
        E.normal_(std=0.5)
        prompt.P.copy_(E[:N])
    mine = ours(tokens, read, MASK)
    other = theirs(input_ids=tokens, attention_mask=MASK, decoder_input_ids=read).logits
    assert (mine - other).abs().max() < 1e-9
    mine.square().mean().backward()
    other.square().mean().backward()
    assert (prompt.P.grad - E.grad[:N]).abs().max() < 1e-9


def test_a_prefix_stands_before_the_keys_of_every_attention():
    model, (tokens, read) = bart(), text()
    prefix = add_deep_prompts(model, N)
    prefix.double()
    names = [n for n, m in model.named_modules() if n.endswith("_attn")]
    assert len(prefix.P) == len(names) == 6
    kept = {}
    for name in names:
        attention = model.get_submodule(name)
        for part in ("q_proj", "k_proj", "v_proj", "core"):
            attention.get_submodule(part).register_forward_hook(
                lambda m, args, out, key=(name, part): kept.update({key: out})
            )
    model(tokens, read, MASK)
    for layer, name in enumerate(names):
        q, k, v = (kept[name, f"{part}_proj"].unflatten(-1, (4, 4)).transpose(1, 2) for part in "qkv")
        P_K, P_V = (P.expand(3, -1, -1, -1) for P in prefix(layer))
        scores = q @ torch.cat((P_K, k), dim=2).transpose(2, 3) / 2
        hidden = (
            torch.ones(SEQ, SEQ).triu(1).bool()
            if "decoder" in name and "self" in name
            else MASK[:, None, None] == 0
        )
        scores[..., N:] = scores[..., N:].masked_fill(hidden, -torch.inf)
        expected = scores.softmax(-1) @ torch.cat((P_V, v), dim=2)
        assert (kept[name, "core"] - expected).abs().max() < 1e-9, name


def test_what_is_written_is_what_the_model_says():
    tokens, mask, start = text()[0][1:2], MASK[1:2], torch.tensor([[2]])
    for add in (lambda m: add_prompt(m, N), lambda m: add_prefix(m, N, hidden_size=8)):
        plain, tuned = bart(), bart()
        nn.init.normal_(next(add(tuned).double().parameters()), std=3.0)
        logits = tuned(tokens, start, mask)
        assert (logits - plain(tokens, start, mask)).abs().max() > 1e-3
        written = generate(BartWriter(tuned, tokens, mask), [[2]], 1, use_cache=False)
        assert written == [[int(logits[0, -1].argmax())]]
    with pytest.raises(ValueError, match="no cache holds a prefix; generate with use_cache=False"):
        generate(BartWriter(tuned, tokens, mask), [[2]], 1)


def test_a_prefix_needs_heads_of_one_size():
    model = Bart(BartConfig.tiny(**SIZES, encoder_attention_heads=2, decoder_attention_heads=4))
    with pytest.raises(ValueError, match="encoder and decoder have heads of different sizes"):
        add_prefix(model, N)
