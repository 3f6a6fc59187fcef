"""Models of transformers, cut as their own ``tp_plan`` says: on ranks that do not exist, and on two that do."""

import copy
import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from traced_traffic import sent_in

from course_lib.cli import main
from course_lib.observe.from_module import from_module
from course_lib.observe.ledgers.memory import record_memory
from course_lib.observe.ledgers.products import flops_of
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.observe.tp_plan import cut_by_plan
from course_lib.runtime.launch import launch
from simulator.any_module.memory import traced_memory
from simulator.inputs.plan import Plan
from simulator.ledgers.traffic import Traffic

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 301}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64}
SIZES |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Norms inside of heads; tied, and scaled embeddings; biases; fused projections whose output is gathered
FAMILIES = {"Llama": 2, "Qwen3": 1, "Gemma": 1, "Phi": 1, "Phi3": 1}  # layers
TOKENS = torch.arange(64).view(4, 16)


def make(family, **sizes):
    torch.manual_seed(0)
    sizes = SIZES | {"num_hidden_layers": FAMILIES.get(family, 2)} | sizes
    config = getattr(transformers, f"{family}Config")(**sizes)
    return getattr(transformers, f"{family}ForCausalLM")(config).train()


def trace(model, tp=2):
    return from_module(model, input_ids=TOKENS, labels=TOKENS, tp=tp)


def loss_of(model):
    return model(input_ids=TOKENS, labels=TOKENS).loss


def gradients(model):
    return {
        name: getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for name, p in model.named_parameters()
    }


class Flops(TorchDispatchMode):
    """Those of this rank: PyTorch's own counter takes a DTensor for the whole."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self.total += flops_of(func, args, kwargs or {}, result)
        return result


def cut_by_transformers(model, mesh):
    own = pytest.importorskip("transformers.distributed.tensor_parallel")
    styles = {
        name: model.tp_plan.get(own.replace_layer_number_by_wildcard(name))
        for name, _ in model.named_modules()
    }
    styles |= {name: styles[name.rpartition(".")[0]] for name, _ in model.named_parameters()}
    plan = {name: style for name, style in styles.items() if style}
    own.apply_tensor_parallelism(model, mesh, plan)
    model.tie_weights()


def step(model):
    """What a real rank measures: parameters, messages, FLOPs, bytes kept for backward and at the peak of a step."""
    loss_of(model).backward()  # DTensors run every operator once on tensors as large as the whole, too
    model.zero_grad()
    with record_traffic() as log, Flops() as flops:
        loss_of(model).backward()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    optimizer.step()
    kept, peaks = [], []
    for _ in range(5):  # Gloo's thread may hold a message a moment longer
        with record_memory(model, optimizer) as memory:
            optimizer.zero_grad()
            memory.note([TOKENS], "activations")
            before = memory.mark("before").total
            loss = loss_of(model)
            kept.append(memory.mark("kept").total - before)
            loss.backward()
            del loss
            optimizer.step()
        peaks.append(memory.peak.total)
    own = sum(getattr(p, "_local_tensor", p).numel() for p in model.parameters())
    return (own, log.traffic, flops.total, min(kept)), min(peaks)


def run(mesh, family):
    """On a real rank: how far loss and gradients are from one device's, and two measured steps."""
    whole = make(family)
    ours, theirs = copy.deepcopy(whole), copy.deepcopy(whole)
    cut_by_plan(ours, mesh)
    cut_by_transformers(theirs, mesh)
    losses = []
    for model in (whole, ours):
        (loss := loss_of(model)).backward()
        losses.append(loss.item())
    expected, found = gradients(whole), gradients(ours)
    assert expected.keys() == found.keys()
    off = max(float((found[name] - g).norm() / g.norm()) for name, g in expected.items())
    return off, losses, step(ours), step(theirs)


@pytest.fixture(scope="module")
def measured():
    def run_all(mesh):
        return {family: run(mesh, family) for family in FAMILIES}

    return launch(run_all, mesh={"tp": 2})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_cut_by_its_own_plan(family, measured):
    cut = trace(make(family))
    sent = sum((sent_in(piece, 2) for piece in cut.pieces), Traffic())
    predicted = cut.parameters, sent, sum(cut.flops), sum(piece.kept for piece in cut.pieces)
    (held,) = traced_memory(cut, Plan(tp=2, precision="fp32", micro_batch=4))
    for rank, found in enumerate(measured):
        off, (whole, loss), *steps = found[family]
        assert off < 1e-5
        assert loss == pytest.approx(whole, rel=1e-6)
        for ledgers, peak in steps:  # cut here, and by transformers
            assert ledgers[1] == sent
            if rank == 0:  # of 301 words, the other one has fewer
                assert ledgers == predicted
                assert peak == pytest.approx(held.total, rel=1e-3)  # beside it, Adam's counts of steps


def test_another_precision_and_more_ranks():
    model = make("Gemma", num_key_value_heads=4, num_hidden_layers=1)
    one, four = (from_module(model, input_ids=TOKENS, labels=TOKENS, itemsize=2, tp=tp) for tp in (1, 4))
    norms, words = 3 * 64, 301 * 64
    assert four.parameters == (one.parameters - norms - words) / 4 + norms + 76 * 64  # 76 of 301 words
    assert four.itemsize == 2


class Inside(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = nn.ModuleList([model])

    def forward(self, **named):
        return self.model[0](**named)


def test_a_model_inside_of_a_module_and_frozen_parts():
    model = make("Qwen3", num_hidden_layers=1)
    alone = trace(model)
    assert trace(Inside(model)).parameters == alone.parameters
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("q_norm" not in name)
    frozen = trace(model)
    assert (frozen.parameters, frozen.frozen) == (alone.parameters, 16)
    calls = [sum(n for piece in one.pieces for n in piece.sent_back.values()) for one in (alone, frozen)]
    assert calls[0] - calls[1] == 1


QUERIES = "model.layers.*.self_attn.q_proj"


@pytest.mark.parametrize(
    ("family", "sizes", "more", "tp", "words"),
    [
        ("Llama", {}, {}, 4, "tp must divide the 2 heads of model.layers.0.self_attn.k_proj, not be 4"),
        ("Llama", {"intermediate_size": 97}, {}, 2, "the 97 columns of model.layers.0.mlp.gate_proj, not"),
        ("Mixtral", {}, {}, 2, "has moe_tp_experts for model.layers.0.mlp.experts; it may have colwise of L"),
        (
            "Llama",
            {},
            {f"{QUERIES}.weight": "colwise"},
            2,
            "has colwise for model.layers.0.self_attn.q_proj.weight; it may have colwi",
        ),
        ("Gemma", {}, {"lm_head": "rowwise_split_input"}, 2, "lm_head.weight are one, and cut in two ways"),
    ],
)
def test_what_is_refused(family, sizes, more, tp, words):
    model = make(family, **sizes)
    model.tp_plan.update(more)
    with pytest.raises(ValueError, match=words):
        trace(model, tp)


def test_the_planner_searches_it(tmp_path):
    (tmp_path / "llama.py").write_text(
        "import torch, transformers\n"
        "def make():\n"
        f"    config = transformers.LlamaConfig(**{SIZES}, num_hidden_layers=2)\n"
        "    tokens = torch.ones(2, 16, dtype=torch.long)\n"
        "    return transformers.LlamaForCausalLM(config), {'input_ids': tokens, 'labels': tokens}\n"
    )
    question = f"simulate --module {tmp_path}/llama.py:make plan --gpu h100 --gpus 4 --global-batch 4 --json"
    result = CliRunner().invoke(main, question.split())
    assert result.exit_code == 0, result.output
    assert {one["plan"]["tp"] for one in json.loads(result.stdout)["best"]} == {
        1,
        2,
    }  # there are two KV heads
    refused = CliRunner().invoke(main, [*question.split(), "--tp", "4"])
    assert "tp must divide the 2 heads" in refused.output
