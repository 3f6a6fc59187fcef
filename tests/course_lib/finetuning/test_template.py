"""P-tuning's template: anchors stay where they are and as they are, and only the vectors between them are trained."""

import copy

import pytest
import torch
from torch import nn

from course_lib.finetuning.prompt import add_p_tuning
from course_lib.finetuning.template import add_template
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig

ANCHOR = [7, 9]


def model(family: str) -> nn.Module:
    torch.manual_seed(0)
    gpt = GPTConfig.tiny(num_layers=2, hidden_size=32)
    return (GPT(gpt) if family == "gpt" else Bert(BertConfig.tiny(vocab_size=256))).eval()


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_anchors_and_vectors_do_what_these_embeddings_in_front_do(family):
    """Trained vectors that are set to the embeddings of tokens make the whole template a text."""
    plain, tokens = model(family), torch.randint(256, (2, 6))
    tuned = copy.deepcopy(plain)
    prompt = add_template(tuned, (1, ANCHOR, 2))
    prompt.fold()
    embeddings = plain.embedding.tokens if family == "gpt" else plain.embeddings.word_embeddings
    prompt.P.data = embeddings(torch.tensor([3, 5, 6]))
    whole = torch.tensor([3, *ANCHOR, 5, 6]).expand(2, -1)
    expected = plain(torch.cat((whole, tokens), dim=1))[:, 5:]
    torch.testing.assert_close(tuned(tokens), expected, rtol=1e-4, atol=1e-5)


def test_training_moves_the_vectors_and_no_anchor():
    gpt, tokens = model("gpt"), torch.randint(256, (2, 6))
    prompt = add_template(gpt, (2, ANCHOR, 1), encoder="mlp")
    before, P = prompt().detach(), prompt.P.detach().clone()
    assert not any(p.requires_grad for name, p in gpt.named_parameters() if "prompt" not in name)
    optimizer = torch.optim.SGD([p for p in gpt.parameters() if p.requires_grad], lr=1.0)
    gpt(tokens).square().mean().backward()
    optimizer.step()
    after = prompt().detach()
    assert torch.equal(before[2:4], after[2:4])
    assert not torch.equal(before[[0, 1, 4]], after[[0, 1, 4]])
    assert prompt.P.shape == P.shape == (3, 32)


def test_folding_keeps_the_outputs_and_throws_the_encoder_away():
    gpt, tokens = model("gpt"), torch.randint(256, (2, 6))
    prompt = add_template(gpt, (2, ANCHOR, 1))
    before = gpt(tokens)
    prompt.fold()
    torch.testing.assert_close(gpt(tokens), before)
    assert sum(p.numel() for p in prompt.parameters()) == 3 * 32
    prompt.fold()  # a second time changes nothing
    torch.testing.assert_close(gpt(tokens), before)


def test_without_anchors_it_is_p_tuning():
    tokens, outputs = torch.randint(256, (2, 6)), []
    for add in (lambda gpt: add_p_tuning(gpt, 4), lambda gpt: add_template(gpt, (4,))):
        gpt = model("gpt")
        torch.manual_seed(1)
        prompt = add(gpt)
        prompt.P.data = torch.ones_like(prompt.P)
        torch.manual_seed(2)
        for parameter in prompt.encoder.parameters():
            nn.init.normal_(parameter, std=0.1)
        outputs.append(gpt(tokens))
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("template", [(0, ANCHOR), (3, [256]), (3, []), (ANCHOR,)])
def test_a_template_that_cannot_be_is_told(template):
    with pytest.raises(ValueError, match="the template"):
        add_template(model("gpt"), template)
