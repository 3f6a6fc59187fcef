"""FLOPs by module: equal to PyTorch's counter, to the simulator's formula, and to DeepSpeed's rules."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from course_lib.models.bart import Bart, BartConfig
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.resnet import ResNet18
from course_lib.observe.ledgers.flops import Flops, ModuleFlops, count_flops, flops_by_module
from simulator.inputs.shape import ModelShape
from simulator.predict.flops import forward_flops

B, S, H = 2, 16, 64
TOKENS = torch.ones(B, S, dtype=torch.long)
CASES = {
    "bert": lambda: (Bert(BertConfig.tiny(), pooler=True), TOKENS),
    "gpt": lambda: (GPT(GPTConfig.tiny(num_layers=2)), TOKENS),
    "llama": lambda: (Llama(LlamaConfig.tiny()), TOKENS),
    "bart": lambda: (Bart(BartConfig.tiny()), TOKENS, TOKENS),
    "resnet": lambda: (ResNet18(num_classes=10), torch.zeros(B, 3, 32, 32)),
}


@pytest.mark.parametrize("name", CASES)
def test_they_equal_pytorchs_counter(name):
    """In forward module by module; in backward, where PyTorch's counter blames neighbours, as a whole."""
    model, *inputs = CASES[name]()
    found = flops_by_module(model, *inputs)
    assert count_flops(model, *inputs) == Flops(found[""].forward, found[""].backward)
    meta, inputs = copy.deepcopy(model).to("meta"), [x.to("meta") for x in inputs]
    with FlopCounterMode(display=False, depth=None) as counter:
        results = meta(*inputs)
        forward = counter.get_total_flops()
        by_module = {key.partition(".")[2]: sum(c.values()) for key, c in counter.get_flop_counts().items()}
        results = results if isinstance(results, tuple) else (results,)
        sum(r.sum() for r in results).backward()
    assert found[""] == (forward, counter.get_total_flops() - forward, found[""].elementwise)
    counted = {key for key in found if key in by_module}  # a container that is not called has no entry
    assert len(counted) > 5
    assert {key: found[key].forward for key in counted} == {key: by_module[key] for key in counted}


@pytest.mark.parametrize("name", ["bert", "gpt", "llama", "bart"])
def test_backward_is_twice_forward_in_every_module(name):
    model, *inputs = CASES[name]()
    for key, flops in flops_by_module(model, *inputs).items():
        assert flops.backward == 2 * flops.forward, key


def test_the_first_convolution_needs_no_gradient_of_its_input():
    found = flops_by_module(*CASES["resnet"]())
    assert found["conv1"].backward == found["conv1"].forward
    assert found["layer1"].backward == 2 * found["layer1"].forward
    parts = [name for name in found if name and "." not in name]
    assert sum(found[name].backward for name in parts) == found[""].backward


def test_the_simulators_formula_counts_the_same():
    gpt = GPTConfig.tiny(num_layers=2)
    shape = ModelShape(2, gpt.hidden_size, gpt.num_heads, gpt.vocab_size, S)
    assert flops_by_module(*CASES["gpt"]())[""].forward == sum(forward_flops(shape, B).values())
    llama = LlamaConfig.tiny()
    sizes = llama.num_hidden_layers, llama.hidden_size, llama.num_attention_heads, llama.vocab_size, S
    shape = ModelShape(
        *sizes,
        llama.num_key_value_heads,
        llama.intermediate_size,
        activation="swiglu",
        head_dim=llama.head_dim,
    )
    assert flops_by_module(*CASES["llama"]())[""].forward == sum(forward_flops(shape, B).values())
    bert = BertConfig.tiny()
    shape = ModelShape(2, H, bert.num_attention_heads, bert.vocab_size, S)
    formula = forward_flops(shape, B)
    found = flops_by_module(*CASES["bert"]())
    assert found["encoder"].forward == sum(formula.values()) - formula["logits"]
    assert sum(found[f"encoder.layer.{i}.attention.self.core"].forward for i in (0, 1)) == formula["core"]


def test_elementwise_operations_are_deepspeeds():
    """Its numbers for these models, version 0.16.9: FLOPs of the forward, and MACs."""
    deepspeed = {
        "bert": (6_637_568, 3_284_992),
        "gpt": (27_922_432, 13_893_632),
        "resnet": (148_701_184, 74_033_152),
    }
    for name, (flops, macs) in deepspeed.items():
        found = flops_by_module(*CASES[name]())[""]
        assert found.macs == macs
        assert 2 * found.macs + found.elementwise == flops
    layer = flops_by_module(*CASES["bert"]())["encoder.layer.0"]
    assert layer.elementwise == 2 * 5 * B * S * H + B * S * 4 * H  # two norms, and GELU


def test_rules_for_single_functions():
    class Many(nn.Module):
        def forward(self, x):  # (2, 3, 8, 8): 384 elements
            x = nn.functional.conv2d(
                x, torch.ones(4, 3, 1, 1, device=x.device), torch.ones(4, device=x.device)
            )
            x = torch.add(x, x) + x
            x = nn.functional.layer_norm(torch.mul(x, 2), (8,))
            return nn.functional.max_pool2d(nn.functional.relu(x), 2).softmax(-1)

    found = flops_by_module(Many(), torch.zeros(2, 3, 8, 8, requires_grad=True))[""]
    after = 2 * 4 * 8 * 8
    assert found.elementwise == after * (
        1 + 1 + 1 + 4 + 1 + 1
    )  # a bias, add, mul, a norm without weights, relu, pool
    assert found.macs == 3 * after


def test_what_is_recomputed_counts_for_the_backward_of_its_module():
    class Recomputed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 8)

        def forward(self, x):
            return self.second(checkpoint(self.first, x, use_reentrant=False))

    found = flops_by_module(Recomputed(), torch.zeros(4, 8, requires_grad=True))
    product = 2 * 4 * 8 * 8
    assert found["first"][:2] == (product, 3 * product)
    assert found["second"][:2] == (product, 2 * product)


def test_a_frozen_model_has_no_backward_and_is_left_as_it_was():
    model, tokens = CASES["bert"]()
    state = copy.deepcopy(model.state_dict())
    model.requires_grad_(False)
    found = flops_by_module(model, tokens)
    assert found[""].backward == 0
    assert found["encoder.layer.0.intermediate"] == ModuleFlops(2 * B * S * H * 256, 0, B * S * 256)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
