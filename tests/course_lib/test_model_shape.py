"""The shape of a model has as many parameters as the model."""

import pytest
import torch

from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.parallelize.shape import model_shape

MODELS = {
    "gpt": lambda: GPT(GPTConfig.tiny()),
    "bert": lambda: BertClassifier(Bert(BertConfig.tiny(), pooler=True), 3),
    "llama": lambda: Llama(LlamaConfig.tiny()),
    "biases of query, key and value": lambda: Llama(LlamaConfig.tiny(qkv_bias=True)),
    "and fewer heads of keys": lambda: Llama(LlamaConfig.tiny(qkv_bias=True, num_key_value_heads=1)),
    "norms of heads": lambda: Llama(LlamaConfig.tiny(qk_norm=True)),
    "gate and up in one matrix": lambda: Llama(LlamaConfig.tiny(qkv_bias=True, fused_gate_up=True)),
}


@pytest.mark.parametrize("name", MODELS)
def test_all_parameters_are_counted(name):
    with torch.device("meta"):
        model = MODELS[name]()
    assert model_shape(model).parameters == sum(p.numel() for p in model.parameters())


def test_anything_else_has_no_shape():
    assert model_shape(torch.nn.Linear(2, 2)) is None
