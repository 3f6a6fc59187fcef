import pytest
import torch
import transformers

from course_lib.models.bert import Bert, BertConfig
from course_lib.models.masked_words import BertMaskedWords


def test_logits_loss_and_gradients_equal_transformers():
    torch.manual_seed(0)
    config = BertConfig.tiny()
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(**vars(config)))
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    ours = BertMaskedWords(Bert(config))
    state = theirs.state_dict()
    assert state.pop("cls.predictions.bias") is not None
    ours.load_state_dict(state)
    mask = (torch.arange(9) < torch.tensor([[9], [4]])).long()
    tokens, segments = torch.randint(1000, (2, 9)), torch.randint(2, (2, 9))
    targets = tokens.masked_fill((torch.arange(9) % 3 > 0) | (mask == 0), -100)
    expected = theirs(tokens, mask, segments, labels=targets)
    logits = ours(tokens, mask, segments)
    torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=1e-5)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    expected.loss.backward()
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    for name, p in theirs.named_parameters():
        mine = gradients["cls.predictions.decoder.bias" if name == "cls.predictions.bias" else name]
        assert (mine - p.grad).norm() < 1e-4 * p.grad.norm().clamp(min=1e-3), name


def test_refuses_a_bert_with_a_pooler():
    with pytest.raises(ValueError, match="this Bert has a pooler"):
        BertMaskedWords(Bert(BertConfig.tiny(), pooler=True))
