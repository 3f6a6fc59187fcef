"""An adapter saved without the pretrained weights, and put back into the model that it belongs to."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from course_lib.finetuning.adapter_file import write_trained
from course_lib.finetuning.lora_apply import (
    apply_lora,
    lora_layers,
    mark_only_lora_as_trainable,
    merge,
    merge_and_unload,
)
from course_lib.finetuning.lora_file import load_adapter, save_adapter
from course_lib.models.bert import Bert, BertClassifier, BertConfig

TOKENS = torch.arange(1, 13).view(2, 6)


def plain(seed=0, classes=5):
    torch.manual_seed(seed)
    return BertClassifier(Bert(BertConfig.tiny(vocab_size=100), pooler=True), classes)


def trained(bias="none"):
    model = plain()
    apply_lora(model, ["query", "value"], rank=2)
    mark_only_lora_as_trainable(model, bias=bias, also=["classifier"])
    torch.manual_seed(2)
    for p in model.parameters():
        if p.requires_grad:
            nn.init.normal_(p, std=0.1)
    return model


@pytest.fixture
def path(tmp_path):
    return tmp_path / "adapter.safetensors"


@pytest.mark.parametrize("bias", ["none", "all"])
def test_a_plain_model_with_the_adapter_is_the_trained_one(path, bias):
    model = trained(bias)
    save_adapter(path, model)
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert sum(t.numel() for t in load_file(path).values()) == count, "nothing pretrained is in the file"
    again = plain()
    table = load_adapter(path, again)
    assert table == {name: layer.config for name, layer in lora_layers(model).items()}
    assert torch.equal(again(TOKENS), model(TOKENS))
    with pytest.raises(ValueError, match="another pretrained model"):  # biases, too, are taken from the file
        load_adapter(path, plain(seed=1))


def test_a_merged_model_saves_and_loads_what_an_unmerged_one_does(path):
    model = trained()
    merge(model.eval())
    save_adapter(path, model)
    with torch.no_grad():
        expected = model(TOKENS)
        other = plain()
        apply_lora(other, ["query", "value"], rank=2)
        merge(other.eval())
        load_adapter(path, other)
        assert torch.equal(other(TOKENS), expected)
        half = plain().bfloat16()
        load_adapter(path, half)
    assert (
        lora_layers(half)["bert.encoder.layer.0.attention.self.query"].lora_A.weight.dtype == torch.bfloat16
    )


@pytest.mark.parametrize("place", [(0, 0), (3, 7), (-1, -2)])
def test_a_pretrained_model_in_which_one_number_differs_is_another_one(path, place):
    save_adapter(path, trained())
    other = plain()
    with torch.no_grad():
        other.bert.encoder.layer[0].attention.self.query.weight[place] += 0.01
    with pytest.raises(ValueError, match="another pretrained model"):
        load_adapter(path, other)


def test_an_adapter_fits_the_pretrained_model_in_bf16(path):
    save_adapter(path, trained())
    load_adapter(path, plain().bfloat16())


def test_what_does_not_fit_is_refused_and_the_model_stays_as_it_is(path, tmp_path):
    model = trained()
    save_adapter(path, model)
    unloaded = merge_and_unload(copy.deepcopy(model))
    with pytest.raises(ValueError, match="no module of this model has LoRA"):
        save_adapter(tmp_path / "other", unloaded)
    other_rank = plain()
    apply_lora(other_rank, ["query", "value"], rank=4)
    fewer = plain()
    apply_lora(fewer, ["query"], rank=2)
    cases = [
        (plain(seed=1), "another pretrained model"),
        (unloaded, "another pretrained model than this one, or with other weights in it"),
        (
            other_rank,
            r"adapts 4 modules with rank 2 \(bert.+query, …\), and this model has 4 modules with rank 4",
        ),
        (fewer, "and this model has 2 modules with rank 2"),
        (plain(classes=3), r"has classifier.bias of the shape \(5,\); the model has \(3,\)"),
    ]
    for target, message in cases:
        before = {name: t.clone() for name, t in target.state_dict().items()}
        with pytest.raises(ValueError, match=message):
            load_adapter(path, target)
        after = target.state_dict()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[name], t) for name, t in before.items())


def test_other_files_and_partial_states_are_refused(path):
    with pytest.raises(ValueError, match="is no file that write_trained has written"):
        load_adapter(path, plain())
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="is no file that write_trained has written"):
        load_adapter(path, plain())
    write_trained(path, {}, {"method": "prefix"}, {})
    with pytest.raises(ValueError, match="holds no LoRA adapter, but one of prefix"):
        load_adapter(path, plain())
    model = trained()
    state = model.state_dict() | {"classifier.weight": torch.zeros(2, 64)}
    with pytest.raises(ValueError, match=r"the state must have classifier.weight of the shape \(5, 64\)"):
        save_adapter(path, model, state)
    with torch.device("meta"):
        names = trained()
    save_adapter(path, names, model.state_dict())
    load_adapter(path, again := plain())
    assert torch.equal(again(TOKENS), model(TOKENS))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
