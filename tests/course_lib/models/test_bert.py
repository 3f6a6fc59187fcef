import pytest
import torch
import torchinfo
import transformers

from course_lib.models.bert import Bert, BertClassifier, BertConfig


def their_config(config: BertConfig, **more: object) -> transformers.BertConfig:
    return transformers.BertConfig(**vars(config), **more)


def randomise(model: torch.nn.Module) -> None:
    for parameter in model.parameters():  # biases and norms start trivial: an error in them would not show
        torch.nn.init.normal_(parameter, std=0.1)


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, padding mask and segments of sequences of 9, 4 and 1 tokens."""
    torch.manual_seed(0)
    mask = (torch.arange(9) < torch.tensor([[9], [4], [1]])).long()
    return torch.randint(1000, (3, 9)), mask, torch.randint(2, (3, 9))


def test_hidden_states_and_pooled_equal_transformers(batch):
    tokens, mask, segments = batch
    theirs = transformers.BertModel(their_config(BertConfig.tiny())).eval()
    randomise(theirs)
    ours = Bert(BertConfig.tiny(), pooler=True).eval()
    ours.load_state_dict(theirs.state_dict())  # every name is theirs
    hidden, pooled = ours(tokens, mask, segments)
    expected = theirs(tokens, mask, segments)
    torch.testing.assert_close(hidden, expected.last_hidden_state, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pooled, expected.pooler_output, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours(tokens)[0], theirs(tokens).last_hidden_state, rtol=1e-5, atol=1e-5)


def test_classifier_logits_and_gradients_equal_transformers(batch):
    tokens, mask, segments = batch
    theirs = transformers.BertForSequenceClassification(their_config(BertConfig.tiny(), num_labels=5))
    randomise(theirs)
    ours = BertClassifier(Bert(BertConfig.tiny(), pooler=True), num_classes=5)
    ours.load_state_dict(theirs.state_dict())
    mine, other = ours(tokens, mask, segments), theirs(tokens, mask, segments).logits
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    mine.square().mean().backward()
    other.square().mean().backward()
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(
            a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_padding_changes_nothing(batch):
    tokens, mask, _ = batch
    model = Bert(BertConfig.tiny()).eval()
    padded = model(tokens, mask)
    for row, length in enumerate([9, 4, 1]):
        alone = model(tokens[row : row + 1, :length])
        torch.testing.assert_close(padded[row : row + 1, :length], alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model(tokens, mask.bool()), padded)


def test_bert_base_has_109_482_240_parameters():
    with torch.device("meta"):
        model = Bert(BertConfig(), pooler=True)
    summary = torchinfo.summary(
        model, input_data=torch.zeros(1, 8, dtype=torch.long), device="meta", verbose=0
    )
    assert summary.total_params == 109_482_240
    assert sum(p.numel() for p in model.parameters()) == 109_482_240


def test_without_pooler_every_parameter_is_used(batch):
    model = Bert(BertConfig.tiny())
    model(*batch).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_dropout_acts_in_training_only(batch):
    tokens, *_ = batch
    for which in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        model = Bert(BertConfig.tiny(**{which: 0.5}))
        assert not torch.equal(model(tokens), model(tokens))
        model.eval()
        assert torch.equal(model(tokens), model(tokens))


def test_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="hidden_size 64 does not divide into 5 heads"):
        BertConfig.tiny(num_attention_heads=5)
    with pytest.raises(ValueError, match="65 tokens; this model has 64 positions"):
        Bert(BertConfig.tiny())(torch.zeros(1, 65, dtype=torch.long))
    with pytest.raises(ValueError, match="no pooler"):
        BertClassifier(Bert(BertConfig.tiny()), num_classes=2)
    with pytest.raises(ValueError, match="num_classes is 0"):
        BertClassifier(Bert(BertConfig.tiny(), pooler=True), num_classes=0)
