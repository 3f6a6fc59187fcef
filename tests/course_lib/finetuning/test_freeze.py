"""Which parameters are trained, chosen by names."""

import pytest
import torch
from torch import nn

from course_lib.finetuning.freeze import (
    count_parameters,
    mark_only_as_trainable,
    mark_only_biases_as_trainable,
)
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig


def classifier():
    return BertClassifier(Bert(BertConfig.tiny(), pooler=True), 5)


def trained(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_a_head_biases_or_what_a_function_chooses():
    model = classifier()
    model.bert.pooler.dense.weight.grad = torch.ones(64, 64)
    count = mark_only_as_trainable(model, ["classifier"])
    assert trained(model) == {"classifier.weight", "classifier.bias"}
    assert count.trainable == 5 * 64 + 5
    assert count.total == sum(p.numel() for p in model.parameters())
    assert str(count).startswith("325 of ")
    assert model.bert.pooler.dense.weight.grad is None, "an optimizer would still apply it"
    mark_only_biases_as_trainable(model, also=["classifier"])
    biases = {name for name, _ in model.named_parameters() if name.endswith(".bias")}
    assert trained(model) == biases | {"classifier.weight"}
    mark_only_as_trainable(model, lambda name, p: p.dim() == 1 and "LayerNorm" in name)
    assert all("LayerNorm" in name for name in trained(model))
    mark_only_as_trainable(model, "layer.*.attention.output.dense.bias")
    assert len(trained(model)) == 2


def test_a_tied_parameter_is_chosen_by_any_of_its_names_and_counted_once():
    model = GPT(GPTConfig.tiny(num_layers=1))
    assert model.head.weight is model.embedding.tokens.weight
    count = mark_only_as_trainable(model, ["head"])
    assert count.trainable == model.head.weight.numel()
    assert model.embedding.tokens.weight.requires_grad


@pytest.mark.parametrize(
    "wrong", [["classifer"], ["classifier", "bert.pooler.weight"], [], lambda name, p: False]
)
def test_names_that_fit_nothing_are_refused_and_change_nothing(wrong):
    model = classifier()
    with pytest.raises(ValueError, match="no parameter"):
        mark_only_as_trainable(model, wrong)
    assert all(p.requires_grad for p in model.parameters())


def test_parameters_are_counted_without_memory():
    with torch.device("meta"):
        count = count_parameters(nn.Linear(2**20, 2**20, bias=False))
    assert count.total == count.trainable == 2**40
    assert count.percent == 100
