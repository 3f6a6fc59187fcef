"""LoRA, adapters, prompt and prefix tuning by hand, trained beside peft's and those of production, in fp64."""

import copy
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from course_lib.by_hand import adapters, lora, prompt
from course_lib.finetuning.adapter import LlamaAdapter, add_adapters
from course_lib.finetuning.lora_apply import apply_lora, mark_only_lora_as_trainable, merge_and_unload
from course_lib.finetuning.prefix import add_prefix
from course_lib.finetuning.prompt import add_prompt
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import current_device

peft = pytest.importorskip("peft")
N, VOCAB = 3, 29
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []


def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=20, n_embd=24, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )  # fmt: skip
    theirs = GPT2LMHeadModel(config).double().to(current_device())
    for w in theirs.parameters():
        nn.init.normal_(w, std=0.2)
    return theirs


def gpt():
    """Our GPT with the weights of ``gpt2()``."""
    ours = GPT(GPTConfig(vocab_size=VOCAB, max_length=20, num_layers=2, num_heads=4, hidden_size=24))
    convert = runpy.run_path(str(Path(__file__).parents[1] / "models" / "test_gpt.py"))["gpt2_state"]
    ours.double().load_state_dict(convert(gpt2()))
    return ours.to(current_device())


def batches():
    draws = torch.Generator().manual_seed(1)
    for _ in range(3):
        tokens = torch.randint(VOCAB, (4, 10), generator=draws).to(current_device())
        yield tokens[:, :-1], tokens[:, 1:]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def by_hand(technique, name, adapt, start):
    """Losses, norms and the model, trained from what ``start`` gives to what is trained."""
    model, rung = gpt(), technique.RUNGS[name]

    def started(model, **settings):
        found = rung.get("adapt", adapt)(model, **settings)
        start(found)
        return found

    settings = {key: value for key, value in rung.items() if key != "adapt"}
    return *zip(
        *technique.train(model, batches(), sgd, cross_entropy, adapt=started, **settings), strict=True
    ), model


def theirs(model, call):
    """The same of a model that is adapted already. ``call`` gives its logits."""
    trained = [w for w in model.parameters() if w.requires_grad]
    optimizer, losses, norms = sgd(trained), [], []
    for inputs, targets in batches():
        loss = cross_entropy(call(model, inputs), targets)
        loss.backward()
        losses.append(loss.detach())
        norms.append(nn.utils.get_total_norm([w.grad for w in trained]))
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def close(ours, expected):
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def plain(model, inputs):
    return model(inputs)


def of_transformers(model, inputs):
    return model(input_ids=inputs, use_cache=False).logits[:, -inputs.shape[1] :]


def filled(parameters):
    """Values that nobody would start with: an error in what starts at zero would not show."""
    draws = torch.Generator().manual_seed(7)
    for w in parameters:
        w.data = torch.randn(w.shape, generator=draws, dtype=w.dtype).mul(0.3).to(w.device)


def layer_by_layer(model, a, b):
    return [w for block in model.blocks for name in ("query", "value")
            for w in (a(getattr(block.attention, name)), b(getattr(block.attention, name)))]  # fmt: skip


@pytest.mark.parametrize("name", lora.RUNGS)
@pytest.mark.parametrize("other", ["peft", "production"])
def test_lora_and_its_merged_matrices(name, other):
    losses, norms, model = by_hand(lora, name, lora.apply, filled)
    twin = gpt()
    if other == "peft":
        config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"])
        twin = peft.inject_adapter_in_model(config, twin)
        filled(
            layer_by_layer(twin, lambda m: m.lora_A["default"].weight, lambda m: m.lora_B["default"].weight)
        )
    else:
        apply_lora(twin, ["query", "value"], rank=8, alpha=16)
        mark_only_lora_as_trainable(twin)
        filled(layer_by_layer(twin, lambda m: m.lora_A.weight, lambda m: m.lora_B.weight))
    expected = theirs(twin, plain)
    close(losses, expected[0])
    close(norms, expected[1])
    if other == "production":
        twin = merge_and_unload(twin) or twin
        state = twin.state_dict()
        assert model.state_dict().keys() == state.keys() == gpt().state_dict().keys()
        for key, w in model.state_dict().items():
            torch.testing.assert_close(w, state[key], rtol=0, atol=1e-9)
    else:
        for block, their in zip(model.blocks, twin.blocks, strict=True):
            for linear in ("query", "value"):
                merged = getattr(their.attention, linear)
                merged.merge()
                ours = getattr(block.attention, linear).weight
                torch.testing.assert_close(ours, merged.base_layer.weight, rtol=0, atol=1e-9)


def test_lora_starts_from_the_pretrained_model_and_trains_r_times_d_plus_k():
    model, tokens = gpt(), next(batches())[0]
    before = model(tokens)
    trained = lora.apply(model, r=4)
    torch.testing.assert_close(model(tokens), before)
    assert sum(w.numel() for w in trained) == 2 * 2 * 4 * (24 + 24)
    assert {id(w) for w in model.parameters() if w.requires_grad} == {id(w) for w in trained}


@pytest.mark.parametrize("name", ["Houlsby", "Pfeiffer"])
def test_bottlenecks_equal_those_of_production(name):
    def start(trained):
        filled(w for w in trained if w.shape != (24,))  # no norms

    losses, norms, model = by_hand(adapters, name, None, start)
    twin = gpt()
    bottlenecks = add_adapters(twin, 16, name.lower())
    filled(w for adapter in bottlenecks for w in adapter.parameters() if w.shape != (24,))
    expected = theirs(twin, plain)
    close(losses, expected[0])
    close(norms, expected[1])
    tokens = next(batches())[0]
    torch.testing.assert_close(model(tokens), twin(tokens), rtol=0, atol=1e-9)


def test_llama_adapter_equals_that_of_production_and_starts_closed():
    model, tokens = gpt(), next(batches())[0]
    before = model(tokens)
    adapters.llama_adapter(model, K=N)
    torch.testing.assert_close(model(tokens), before, rtol=0, atol=0)
    losses, norms, model = by_hand(adapters, "LLaMA-Adapter", None, filled)
    twin = gpt()
    for w in twin.parameters():
        w.requires_grad_(False)
    gates = nn.ModuleList(LlamaAdapter(10, 24) for _ in twin.blocks).double().to(current_device())
    filled(gates.parameters())
    for block, gate in zip(twin.blocks, gates, strict=True):
        attention = block.attention
        named = SimpleNamespace(k_proj=attention.key, v_proj=attention.value, head_size=6)
        attention.core.forward = lambda q, k, v, gate=gate, named=named: gate.attend(
            named, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v
        )
    twin.gates = gates
    expected = theirs(twin, plain)
    close(losses, expected[0])
    close(norms, expected[1])
    torch.testing.assert_close(model(tokens), twin(tokens), rtol=0, atol=1e-9)


def test_prompt_equals_pefts_and_that_of_production():
    P = 0.3 * torch.randn(8, 24, dtype=torch.float64).to(current_device())
    losses, norms, model = by_hand(prompt, "prompt", prompt.add, lambda p: p.P.data.copy_(P))
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8)
    twin = peft.get_peft_model(gpt2(), config).double()
    twin.prompt_encoder["default"].embedding.weight.data.copy_(P)
    other = gpt()
    add_prompt(other, 8).P.data = P.clone()
    for expected in (theirs(twin, of_transformers), theirs(other, plain)):
        close(losses, expected[0])
        close(norms, expected[1])
    found = twin.prompt_encoder["default"].embedding.weight
    torch.testing.assert_close(model.prompt.P, found, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["prefix", "prefix of an MLP"])
def test_prefix_equals_pefts(name):
    losses, norms, model = by_hand(prompt, name, prompt.add, lambda p: filled(p.parameters()))
    mlp = name != "prefix"
    config = peft.PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=8, prefix_projection=mlp, encoder_hidden_size=64
    )
    twin = peft.get_peft_model(gpt2(), config).double()
    encoder = twin.prompt_encoder["default"]
    start = copy.deepcopy(prompt.add(gpt(), **prompt.RUNGS[name]))
    filled(start.parameters())
    if mlp:
        encoder.embedding.weight.data.copy_(start.E)
        encoder.transform.load_state_dict(start.mlp.state_dict())
    else:  # theirs are (n, layers 2 d)
        encoder.embedding.weight.data.copy_(start.P.transpose(0, 1).flatten(1))
    expected = theirs(twin, of_transformers)
    close(losses, expected[0])
    close(norms, expected[1])
    tokens = next(batches())[0]
    torch.testing.assert_close(model(tokens), of_transformers(twin, tokens), rtol=0, atol=1e-9)
    assert [key for key in model.state_dict() if key.startswith("prompt")] == ["prompt.P"]  # folded


def test_prefix_equals_that_of_production():
    losses, norms, _ = by_hand(prompt, "prefix", prompt.add, lambda p: filled([p.P]))
    twin = gpt()
    start = prompt.add(gpt(), **prompt.RUNGS["prefix"])
    filled([start.P])
    for w, P in zip(add_prefix(twin, 8, hidden_size=None).P, start.P, strict=True):
        w.data = P.detach().clone()
    expected = theirs(twin, plain)
    close(losses, expected[0])
    close(norms, expected[1])
