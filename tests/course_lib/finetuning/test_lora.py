"""LoRA's layers by the paper's formula, and a model with them against peft."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.finetuning.lora import LoRAConfig, LoRALinear, LoRAMergedLinear
from course_lib.finetuning.lora_apply import (
    apply_lora,
    lora_layers,
    mark_only_lora_as_trainable,
    merge,
    merge_and_unload,
    unmerge,
)
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.pretrained import load_minilm

TOKENS = torch.randint(1, 100, (3, 7), generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([0, 4, 2])
QV = ["query", "value"]


def classifier(seed=0, **changes):
    torch.manual_seed(seed)
    config = BertConfig.tiny(vocab_size=100, hidden_size=32, intermediate_size=64, **changes)
    return BertClassifier(Bert(config, pooler=True), 5).double()


def started(model):
    """B away from its zeros, so that a change of the layer shows."""
    torch.manual_seed(1)
    for layer in lora_layers(model).values():
        for p in (*layer.lora_A.parameters(), *layer.lora_B.parameters()):
            nn.init.normal_(p, std=0.1)
    return model


def adapted(targets=QV, config=None, **settings):
    model = classifier()
    apply_lora(model, targets, config, **settings)
    mark_only_lora_as_trainable(model, also=["classifier"])
    return started(model)


def gradients(model):
    F.cross_entropy(model(TOKENS), TARGETS).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


# ---- by the formula -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rslora", "scaling"), [(False, 16 / 4), (True, 16 / math.sqrt(4))])
def test_a_layer_is_the_papers_formula_and_starts_as_the_plain_one(rslora, scaling):
    base = nn.Linear(6, 5).double()
    layer = LoRALinear(base, LoRAConfig(rank=4, alpha=16, rslora=rslora))
    x = torch.randn(2, 3, 6).double()
    assert torch.equal(layer(x), base(x))
    assert layer.lora_A.weight.shape == (4, 6)
    assert layer.lora_B.weight.shape == (5, 4)
    A, B = layer.lora_A.weight, nn.init.normal_(layer.lora_B.weight)
    expected = x @ base.weight.T + base.bias + scaling * (x @ A.T @ B.T)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer.delta(), scaling * B @ A)


def test_query_and_value_in_one_matrix_get_matrices_of_their_own():
    """Against three separate layers; and where loralib is installed, against its MergedLinear."""
    base = nn.Linear(6, 15).double()
    layer = LoRAMergedLinear(base, LoRAConfig(rank=2, alpha=3, parts=(True, False, True)))
    for p in (*layer.lora_A.parameters(), *layer.lora_B.parameters()):
        nn.init.normal_(p)
    x = torch.randn(2, 3, 6).double()
    (a_q, a_v), (b_q, b_v) = layer.lora_A.weight.split(2), (b.weight for b in layer.lora_B)
    q, k, v = base(x).split(5, dim=-1)
    expected = torch.cat([q + 1.5 * x @ a_q.T @ b_q.T, k, v + 1.5 * x @ a_v.T @ b_v.T], dim=-1)
    torch.testing.assert_close(layer(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(x), expected)
    with pytest.raises(ValueError, match="15 outputs cannot be cut into 2 equal parts"):
        LoRAMergedLinear(base, LoRAConfig(parts=(True, False)))


def test_equals_loralibs_merged_linear():
    loralib = pytest.importorskip("loralib")
    base = nn.Linear(6, 15)
    ours = LoRAMergedLinear(base, LoRAConfig(rank=2, alpha=3, parts=(True, False, True)))
    theirs = loralib.MergedLinear(
        6, 15, r=2, lora_alpha=3, enable_lora=[True, False, True], merge_weights=False
    )
    for p in ours.lora_B.parameters():
        nn.init.normal_(p)
    theirs.load_state_dict(
        {
            **base.state_dict(),
            "lora_A": ours.lora_A.weight,
            "lora_B": torch.cat([b.weight for b in ours.lora_B]),
        }
    )
    x, y = (torch.randn(2, 3, n) for n in (6, 15))
    for layer in (ours, theirs):
        (layer(x) * y).sum().backward()
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.lora_A.weight.grad, theirs.lora_A.grad)
    torch.testing.assert_close(torch.cat([b.weight.grad for b in ours.lora_B]), theirs.lora_B.grad)


# ---- merging --------------------------------------------------------------------------------------------------


def test_eval_merges_train_unmerges_and_the_pretrained_weights_stay_as_they_are():
    model = adapted(["query", "value", "word_embeddings", "classifier"])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        apart = model(TOKENS)
        layers = lora_layers(model.eval()).values()
        assert all(layer.merged_weight is not None for layer in layers)
        torch.testing.assert_close(model(TOKENS), apart)
        merged = [layer.merged_weight for layer in layers]
        merge(model)
        assert all(layer.merged_weight is m for layer, m in zip(layers, merged, strict=True)), "twice is once"
        state = model.state_dict()
    assert state.keys() == before.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, before[name]), f"{name} was saved while merged"
    model.train()
    assert all(layer.merged_weight is None for layer in layers)
    unmerge(model)
    apply_lora(kept := classifier(), QV, merge_on_eval=False)
    assert all(layer.merged_weight is None for layer in lora_layers(kept.eval()).values())


def test_a_merged_layer_trains_and_takes_an_update_or_another_state_into_account():
    """In eval mode (without dropout) people train, too; a merged matrix must then not be out of date."""
    model = adapted().eval()
    layer = model.bert.encoder.layer[0].attention.self.query
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    found = gradients(model)
    assert any("lora_A" in name for name in found)
    old = layer.merged_weight.clone()
    optimizer.step()
    with torch.no_grad():
        after = model(TOKENS)
        assert not torch.equal(layer.merged_weight, old)
        torch.testing.assert_close(after, model.train()(TOKENS))
        other = started(copy.deepcopy(model))
        model.eval()(TOKENS)
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(model(TOKENS), other(TOKENS))


def test_unloading_gives_a_plain_model_and_leaves_a_tied_weight_as_it_is():
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(num_layers=1, dropout=0.0)).double()
    names = list(model.state_dict())
    pretrained = model.head.weight.detach().clone()
    apply_lora(model, ["tokens", "query"], alpha=4, rank=2)
    started(model)
    with torch.no_grad():
        tokens = torch.arange(6)[None]
        expected = model(tokens)
        plain = merge_and_unload(model)
        torch.testing.assert_close(plain(tokens), expected)
    assert list(plain.state_dict()) == names
    assert torch.equal(plain.head.weight, pretrained)
    assert not torch.equal(plain.embedding.tokens.weight, pretrained)


# ---- which parameters -----------------------------------------------------------------------------------------


def test_only_a_and_b_are_trained_and_of_the_biases_those_asked_for():
    model = classifier()
    assert list(apply_lora(model, ["layer.*.attention.self.query"], rank=2)) == [
        f"bert.encoder.layer.{i}.attention.self.query" for i in (0, 1)
    ]
    count = mark_only_lora_as_trainable(model)
    assert count.trainable == 2 * 2 * (32 + 32)
    assert {name.rpartition("query.")[2] for name in gradients(model)} == {"lora_A.weight", "lora_B.weight"}
    only = mark_only_lora_as_trainable(model, bias="lora_only").trainable
    assert only == count.trainable + 2 * 32
    every = mark_only_lora_as_trainable(model, bias="all").trainable
    assert every == count.trainable + sum(
        p.numel() for n, p in model.named_parameters() if n.endswith("bias")
    )


def test_a_table_gives_each_module_its_own_configuration():
    model = classifier()
    table = apply_lora(model, {"1.attention.self.query": LoRAConfig(rank=4), "query": LoRAConfig(rank=1)})
    ranks = {name: config.rank for name, config in table.items()}
    first, second = (f"bert.encoder.layer.{i}.attention.self.query" for i in (0, 1))
    assert ranks == {first: 1, second: 4}
    assert {name: layer.config for name, layer in lora_layers(model).items()} == table


@pytest.mark.parametrize(
    ("targets", "settings", "message"),
    [
        (["q_proj"], {}, "no module of BertClassifier is called 'q_proj'; its modules are called bert, "),
        ([], {}, "targets must name at least one module"),
        (["query"], {"rank": 0}, "rank must be at least 1, not 0"),
        (["query"], {"alpha": math.nan}, "alpha must be a positive number, not nan"),
        (["query"], {"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        (["query"], {"parts": (False,)}, "parts must have at least one True"),
        (["query"], {"fan_in_fan_out": True}, "query is a Linear; LoRA is for nn.Linear"),
        (["query", "LayerNorm"], {}, "bert.embeddings.LayerNorm is a LayerNorm; LoRA is for"),
        ({"query": LoRAConfig()}, {"rank": 2}, "not both"),
    ],
)
def test_targets_that_cannot_be_adapted_are_refused_and_the_model_stays_plain(targets, settings, message):
    model = classifier()
    with pytest.raises(ValueError, match=message):
        apply_lora(model, targets, **settings)
    assert not lora_layers(model)


def test_what_would_be_silently_wrong_is_refused():
    model = adapted()
    for again in ("query", "query.base_layer", "lora_A"):
        with pytest.raises(ValueError, match="has LoRA already"):
            apply_lora(model, [again])
    with pytest.raises(ValueError, match="reads its weight without calling it"):
        apply_lora(nn.Sequential(nn.MultiheadAttention(4, 2)), ["out_proj"])
    with pytest.raises(ValueError, match="bias must be"):
        mark_only_lora_as_trainable(model, bias="some")
    with pytest.raises(ValueError, match="call apply_lora first"):
        mark_only_lora_as_trainable(classifier())


# ---- peft -----------------------------------------------------------------------------------------------------

CASES = {
    "query and value": (QV, {}),
    "all matrices, rsLoRA": (["query", "key", "value", "dense"], {"rslora": True, "alpha": 3}),
    "embedding": (["word_embeddings", "query"], {}),
    "dropout": (QV, {"dropout": 0.3}),
}


def peft_twin(model, targets, settings):
    """The plain model with peft's layers, and this model's values in them."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=settings.get("rank", 8),
        lora_alpha=settings.get("alpha", 16),
        lora_dropout=settings.get("dropout", 0.0),
        use_rslora=settings.get("rslora", False),
        fan_in_fan_out=settings.get("fan_in_fan_out", False),
        target_modules=targets,
        modules_to_save=["classifier"],
    )
    return peft_model(model, config)


def peft_model(model, config):
    import peft

    return peft.inject_adapter_in_model(config, copy.deepcopy(model))


def copy_into(theirs, ours):
    for name, layer in lora_layers(ours).items():
        their = theirs.get_submodule(name)
        with torch.no_grad():
            if isinstance(layer.base_layer, nn.Embedding):
                their.lora_embedding_A["default"].copy_(layer.lora_A.weight.T)
                their.lora_embedding_B["default"].copy_(layer.lora_B.weight)
            else:
                their.lora_A["default"].weight.copy_(layer.lora_A.weight)
                their.lora_B["default"].weight.copy_(layer.lora_B.weight)


def their_matrices(layer, what):
    """A and B of peft's layer in our layout."""
    if len(layer.lora_embedding_A):
        a, b = layer.lora_embedding_A["default"], layer.lora_embedding_B["default"]
        return what(a).T, what(b)
    return what(layer.lora_A["default"].weight), what(layer.lora_B["default"].weight)


@pytest.mark.parametrize("case", CASES)
def test_outputs_gradients_and_merged_weights_equal_pefts(case):
    targets, settings = CASES[case]
    ours = adapted(targets, **settings)
    theirs = peft_twin(classifier(), targets, settings)
    copy_into(theirs.train(), ours)
    outputs = []
    for model in (ours, theirs):
        torch.manual_seed(5)
        outputs.append(model(TOKENS))
        F.cross_entropy(outputs[-1], TARGETS).backward()
    torch.testing.assert_close(*outputs)
    layers = lora_layers(ours)
    assert layers
    for name, layer in layers.items():
        for mine, their in zip(
            (layer.lora_A, layer.lora_B),
            their_matrices(theirs.get_submodule(name), lambda p: p.grad),
            strict=True,
        ):
            torch.testing.assert_close(mine.weight.grad, their)
            assert their.abs().max() > 0
    merge(ours.eval())
    for name, layer in layers.items():
        their = theirs.get_submodule(name)
        their.merge()
        torch.testing.assert_close(layer.merged_weight, their.base_layer.weight)


def test_equals_peft_on_a_pretrained_bert():
    bert, _ = load_minilm()
    ours = copy.deepcopy(bert)
    apply_lora(ours, QV)
    mark_only_lora_as_trainable(ours)
    started(ours)
    config = pytest.importorskip("peft").LoraConfig(r=8, lora_alpha=16, target_modules=QV)
    theirs = peft_model(bert, config)
    copy_into(theirs, ours)
    tokens = torch.randint(1000, 20000, (2, 9), generator=torch.Generator().manual_seed(0))
    hidden = [model(tokens)[0] for model in (ours, theirs)]
    torch.testing.assert_close(*hidden)
    assert not torch.allclose(hidden[0], bert(tokens)[0], atol=1e-2), "B is not zero"
    for h in hidden:
        h.square().mean().backward()
    for name, layer in lora_layers(ours).items():
        for mine, their in zip(
            (layer.lora_A, layer.lora_B),
            their_matrices(theirs.get_submodule(name), lambda p: p.grad),
            strict=True,
        ):
            torch.testing.assert_close(mine.weight.grad, their, rtol=1e-3, atol=1e-6)


def test_equals_peft_where_a_layer_keeps_its_weight_transposed():
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    plain = nn.Sequential(Conv1D(6, 4), nn.Linear(6, 5))
    ours = copy.deepcopy(plain)
    apply_lora(ours, ["0"], rank=2, fan_in_fan_out=True)
    started(ours)
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, lora_alpha=16, target_modules=["0"], fan_in_fan_out=True)
    theirs = peft.inject_adapter_in_model(config, copy.deepcopy(plain))
    copy_into(theirs, ours)
    x = torch.randn(3, 4)
    torch.testing.assert_close(ours(x), theirs(x))
    merge(ours)
    theirs[0].merge()
    torch.testing.assert_close(ours[0].merged_weight, theirs[0].base_layer.weight)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
    with pytest.raises(ValueError, match="0 is a Conv1D"):
        apply_lora(copy.deepcopy(plain), ["0"])
