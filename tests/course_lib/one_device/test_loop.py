import pytest
import torch
from torch import nn

from course_lib.data.digits import load_digits
from course_lib.data.docs import corpus_tokens, language_windows
from course_lib.data.sharding import batches
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.resnet import ResNet18
from course_lib.one_device.loop import accuracy, cross_entropy, train


def test_two_steps_by_hand():
    """Least squares on one weight: w <- w - lr * mean(2 x (w x - y))."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    batch = (torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [6.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = train(model, [batch, batch], optimizer, nn.functional.mse_loss, steps=2)
    # w = 1: errors -2, -4: loss 10, gradient -10, w = 2; then errors -1, -2: loss 2.5, gradient -5, w = 2.5
    assert losses == pytest.approx([10, 2.5])
    assert model.weight.item() == pytest.approx(2.5)


def test_trains_in_training_mode_and_measures_in_evaluation_mode():
    class Spy(nn.Linear):
        modes: list[bool] = []  # noqa: RUF012

        def forward(self, x):
            self.modes.append(self.training)
            return super().forward(x)

    model = Spy(2, 2).eval()
    data = (torch.randn(4, 2), torch.tensor([0, 1, 1, 0]))
    train(model, [data], torch.optim.SGD(model.parameters(), lr=0), steps=1)
    accuracy(model, *data)
    assert model.modes == [True, False]
    assert model.training, "measuring leaves the mode as it was"


def test_accuracy_counts_over_uneven_batches():
    logits = torch.eye(3)[[0, 1, 2, 0, 1, 2, 0]]
    labels = torch.tensor([0, 1, 2, 0, 0, 0, 0])
    assert accuracy(nn.Identity(), logits, labels, batch_size=3) == pytest.approx(5 / 7)


def test_cross_entropy_of_uniform_logits():
    assert cross_entropy(torch.zeros(4, 10), torch.arange(4)).item() == pytest.approx(
        torch.log(torch.tensor(10.0))
    )
    assert cross_entropy(torch.zeros(2, 5, 10), torch.ones(2, 5).long()).item() == pytest.approx(2.302585)


def test_too_few_batches_are_told():
    model = nn.Linear(2, 2)
    data = (torch.randn(4, 2), torch.tensor([0, 1, 1, 0]))
    with pytest.raises(ValueError, match="asked for 5 steps, but there were only 1 batches"):
        train(model, [data], torch.optim.SGD(model.parameters(), lr=0.1), steps=5)


def test_resnet_learns_the_digits():
    torch.manual_seed(0)
    model = ResNet18(10, 1, small_images=True, width=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = train(model, batches(load_digits("train"), 64), optimizer, steps=60)
    assert losses[0] > 2
    assert accuracy(model, *load_digits("test")) > 0.9


def test_gpt_learns_more_than_how_often_each_byte_occurs():
    torch.manual_seed(0)
    tokens = corpus_tokens("bytes")
    frequencies = tokens.bincount() / len(tokens)
    entropy = torch.special.entr(frequencies).sum().item()
    model = GPT(GPTConfig.tiny(num_layers=2, hidden_size=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    losses = train(model, batches(language_windows(tokens, 64), 16), optimizer, steps=150)
    assert losses[0] == pytest.approx(5.55, abs=0.15)  # ln 256: it knows nothing
    assert sum(losses[-10:]) / 10 < entropy - 0.15


def test_a_masked_batch_reaches_the_model():
    """Labels follow from the text; noise in the padding would hide it if the mask did not arrive."""
    torch.manual_seed(0)
    n, seq = 64, 12
    labels = torch.randint(2, (n,))
    mask = torch.arange(seq).expand(n, -1) < 4
    tokens = torch.where(mask, labels[:, None] + 1, torch.randint(1, 3, (n, seq)))
    model = BertClassifier(Bert(BertConfig.tiny(), pooler=True), num_classes=2)
    data = (tokens, mask, labels)
    losses = train(model, batches(data, 32), torch.optim.AdamW(model.parameters(), lr=1e-3), steps=15)
    assert losses[-1] < 0.3 < losses[0]
    assert accuracy(model, *data) == 1
