"""The shape of a model has as many parameters as the model."""

import pytest
import torch

from course_lib.models.bart import Bart, BartConfig, BartDecoderLayer, BartEncoderLayer
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.observe.ledgers.flops import count_flops
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.parallelize.shape import model_shape
from simulator.inputs.plan import Plan
from simulator.predict.flops import forward_flops
from simulator.predict.memory import layer_bytes

MODELS = {
    "gpt": lambda: GPT(GPTConfig.tiny()),
    "bert": lambda: BertClassifier(Bert(BertConfig.tiny(), pooler=True), 3),
    "llama": lambda: Llama(LlamaConfig.tiny()),
    "biases of query, key and value": lambda: Llama(LlamaConfig.tiny(qkv_bias=True)),
    "and fewer heads of keys": lambda: Llama(LlamaConfig.tiny(qkv_bias=True, num_key_value_heads=1)),
    "bart": lambda: Bart(BartConfig.tiny(decoder_layers=3)),
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


def test_the_flops_of_an_encoder_decoder_are_those_that_pytorch_counts():
    config = BartConfig.tiny(decoder_layers=3, final_logits_bias=False)
    with torch.device("meta"):
        model = Bart(config)
        tokens = torch.zeros(2, 16, dtype=torch.long)
    counted = count_flops(model, tokens, tokens)
    assert sum(forward_flops(model_shape(model, 16), 2).values()) == counted.forward


def test_cross_attention_keeps_what_the_simulator_says():
    """Beside the encoder's text, which all layers of the decoder share."""
    config, batch, seq = BartConfig.tiny(), 3, 16
    x, memory = (torch.zeros(batch, seq, config.d_model) for _ in range(2))
    layers = BartEncoderLayer(config, 4, 256, causal=True), BartDecoderLayer(config, 4, 256)
    kept = [
        sum(tensor.bytes for tensor in saved_tensors(layer, *inputs))
        for layer, inputs in zip(layers, ((x,), (x, memory)), strict=True)
    ]
    encoder, decoder = (
        layer_bytes(kind, Plan(precision="fp32", micro_batch=batch, attention="flash"))
        for kind in model_shape(Bart(config), seq).kinds()
    )
    statistics = 2 * 4 * batch * seq  # a mean and a deviation for each token, which the simulator leaves out
    assert kept[1] - kept[0] - memory.nbytes - statistics == decoder - encoder
