"""Activation offload: the same gradients bit for bit, from the bytes that the ledgers predict."""

import copy
import gc
from dataclasses import replace

import pytest
import torch

from course_lib.models.bart import Bart, BartConfig
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.observe.ledgers.memory import record_memory
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.one_device import activation_offload
from course_lib.one_device.activation_offload import apply_activation_offload
from course_lib.parallelize.shape import model_shape
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.predict.kernel_time import HOST_LINK
from simulator.predict.layer_time import layer_seconds
from simulator.predict.memory import all_activation_bytes, host_bytes, layer_bytes, rank_memory
from simulator.predict.step import step_cost

SIZES = {"hidden_size": 32, "vocab_size": 64}
MAKERS = {
    "gpt": lambda: GPT(GPTConfig.tiny(num_layers=4, num_heads=4, dropout=0.2, max_length=16, **SIZES)),
    "llama": lambda: Llama(LlamaConfig.tiny(num_hidden_layers=3, num_key_value_heads=2, **SIZES)),
    "bert": lambda: BertClassifier(Bert(BertConfig.tiny(num_hidden_layers=2, **SIZES), pooler=True), 3),
    "bart": lambda: Bart(BartConfig.tiny(vocab_size=64)),
}


def make(name, device="cpu"):
    torch.manual_seed(0)
    return MAKERS[name]().to(device)


def inputs_of(name, device="cpu"):
    tokens = torch.randint(3, 64, (4, 16), generator=torch.Generator().manual_seed(1)).to(device)
    mask = [torch.ones_like(tokens)] if name == "bert" else []
    return [tokens, tokens] if name == "bart" else [tokens, *mask]


def gradients(model, inputs, backwards=1):
    torch.manual_seed(2)
    loss = model(*inputs).float().square().mean()
    for i in range(backwards):
        loss.backward(retain_graph=i + 1 < backwards)
    found = [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
    model.zero_grad()
    return found


@pytest.mark.parametrize(("name", "backwards"), [*((name, 1) for name in MAKERS), ("gpt", 2)])
def test_gradients_are_the_same_bit_for_bit_and_nothing_stays_on_the_host(name, backwards):
    plain, moved = make(name).train(), make(name).train()
    host = apply_activation_offload(moved)
    for _ in range(2):
        for a, b in zip(
            gradients(moved, inputs_of(name), backwards),
            gradients(plain, inputs_of(name), backwards),
            strict=True,
        ):
            assert torch.equal(a, b)
        gc.collect()
        assert host.bytes == 0
    assert host.back.bytes > 0


def test_two_microbatches_in_flight_come_back_in_either_order():
    plain, moved = make("gpt"), make("gpt")
    apply_activation_offload(moved)
    for order in ([0, 1], [1, 0]):
        found = []
        for model in (plain, moved):
            torch.manual_seed(3)
            losses = [model(t).square().mean() for t in inputs_of("gpt")[0].chunk(2)]
            for i in order:
                losses[i].backward()
            found.append([p.grad.clone() for p in model.parameters()])
            model.zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_what_is_moved_is_what_the_layers_save():
    """Each storage once; the smallest stay, and so do parameters."""
    model = make("gpt")
    saved = [t for t in saved_tensors(model, *inputs_of("gpt")) if t.saved_in.startswith("blocks.")]
    large = [t.bytes for t in saved if t.bytes >= activation_offload.LEAST]
    assert len(large) > 0.5 * len(saved)
    host = apply_activation_offload(model)
    loss = model(*inputs_of("gpt")).square().mean()
    assert host.bytes == host.out.bytes == host.peak == sum(large)
    loss.backward()
    # But for those of the last layer, which have not yet left when their backward begins.
    last = sum(
        t.bytes for t in saved if t.saved_in.startswith("blocks.3") and t.bytes >= activation_offload.LEAST
    )
    assert host.back.bytes == sum(large) - last


def test_the_device_holds_what_two_layers_save(monkeypatch):
    """As the ledger of memory sees it."""
    monkeypatch.setattr(activation_offload, "LEAST", 1)
    peaks = {}
    for way in ("none", "offload"):
        model = make("gpt")
        if way == "offload":
            apply_activation_offload(model)
        inputs = inputs_of("gpt")
        with record_memory(model) as log:
            model(*inputs).square().mean().backward()
        peaks[way] = max(held.activations + held.buffers for held in log.held)
    layer = sum(t.bytes for t in saved_tensors(make("gpt"), *inputs_of("gpt")) if "blocks.1." in t.saved_in)
    assert peaks["none"] - peaks["offload"] == pytest.approx(2 * layer, rel=0.1)  # four layers, and two


# ---- the simulator ---------------------------------------------------------------------------------------------


def test_it_is_priced():
    shape, a100 = MODELS["gpt2"], GPUS["a100-80gb"]
    none, moved = (Plan(micro_batch=8, recompute=way, microbatches=1) for way in ("none", "offload"))
    layers = shape.layers * layer_bytes(shape, none.on(a100))
    plan, plain = moved.on(a100), none.on(a100)
    kept = all_activation_bytes(shape, plain)[0] - all_activation_bytes(shape, plan)[0]
    assert kept == pytest.approx(layers)
    assert host_bytes(shape, plan) == pytest.approx(layers)
    saved = rank_memory(shape, plain).total - rank_memory(shape, plan).total
    assert saved == pytest.approx((shape.layers - 2) / shape.layers * layers)
    # What the link takes longer than the layer computes is seen, each way, and nothing else.
    one = layer_seconds(shape, plain, a100)
    link = layer_bytes(shape, plain) / HOST_LINK
    seen = max(0, link - one.forward_seconds) + max(0, link - one.backward_seconds)
    assert seen > 0
    costs = step_cost(shape, moved, a100), step_cost(shape, none, a100)
    assert costs[0].seconds - costs[1].seconds == pytest.approx(shape.layers * seen)
    assert costs[0].hfu < costs[1].hfu
    assert costs[0].hardware_flops == costs[1].hardware_flops


# ---- on a GPU --------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_peak_falls_and_gradients_are_the_same():
    torch.manual_seed(0)
    config = GPTConfig.tiny(num_layers=8, num_heads=8, hidden_size=512, vocab_size=64, max_length=512)
    plain = GPT(config).cuda()
    moved = copy.deepcopy(plain)
    host = apply_activation_offload(moved)
    tokens = torch.randint(64, (16, 512), device="cuda")
    peaks, found = [], []
    for model in (plain, moved):
        gradients(model, [tokens])  # the allocators' first blocks
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found.append(gradients(model, [tokens]))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    layer = host.peak / 8
    shape = replace(model_shape(plain, 512), dropout=False)
    assert layer == pytest.approx(
        layer_bytes(shape, Plan(micro_batch=16, precision="fp32", attention="flash")), rel=0.1
    )
    assert peaks[0] - peaks[1] > 5 * layer
