"""A profile adds up, is a tree to the depth asked for, and leaves the model as it was."""

import copy

import pytest
import torch

from course_lib.models.bert import Bert, BertConfig
from course_lib.models.resnet import ResNet18
from course_lib.observe.ledgers.module_seconds import module_seconds
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.observe.profile import profile

TOKENS = torch.ones(2, 16, dtype=torch.long)


def test_figures_of_a_bert():
    model = Bert(BertConfig.tiny())
    state, mode = copy.deepcopy(model.state_dict()), model.training
    found = profile(model, TOKENS, depth=3, repeats=2)
    whole = found[""]
    assert whole.parameters == sum(p.numel() for p in model.parameters())
    assert whole.parameter_bytes == 4 * whole.parameters
    assert whole.saved_bytes == sum(t.bytes for t in saved_tensors(model, TOKENS))
    halves = [found["embeddings"], found["encoder"]]
    for figure in ("parameters", "parameter_bytes", "saved_bytes"):
        assert sum(getattr(half, figure) for half in halves) == getattr(whole, figure)
    assert found["encoder.layer"].flops == found["encoder"].flops
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert model.training == mode
    assert all(p.grad is None for p in model.parameters())
    shown = repr(found)
    assert "\u2003\u2003layer (ModuleList)" in shown
    assert "\u2003\u2003\u20030 (BertLayer)" in shown
    assert "attention (BertAttention)" not in shown, "that is one level deeper"
    assert "dropout" not in shown, "it has nothing to show"
    assert found.as_json()[0]["flops"]["macs"] == whole.flops.macs
    assert "<table>" in found.html


def test_seconds_of_modules_are_inside_those_of_the_model():
    found = module_seconds(ResNet18(num_classes=10, width=8), torch.zeros(2, 3, 32, 32), repeats=3)
    for name, seconds in found.items():
        inside = [found[n] for n in found if n and n.rpartition(".")[0] == name and n != name]
        assert seconds.forward >= sum(part.forward for part in inside) >= 0, name
        assert seconds.backward >= sum(part.backward for part in inside) * (1 - 1e-9), name
    for name in ("", "conv1", "layer1", "fc"):
        assert min(found[name]) > 0


def test_a_model_on_meta_is_counted_as_on_the_cpu():
    with torch.device("meta"):
        empty = Bert(BertConfig.tiny())
    real = Bert(BertConfig.tiny())
    counted, expected = (profile(model, TOKENS, run=False) for model in (empty, real))
    assert counted.modules == expected.modules
    assert "forward" in repr(expected), "of FLOPs"
    assert " ms" not in repr(expected)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="depth must be 0 or more, not -1"):
        profile(Bert(BertConfig.tiny()), TOKENS, depth=-1)
    with pytest.raises(ValueError, match="repeats must be 1 or more, not 0"):
        module_seconds(Bert(BertConfig.tiny()), TOKENS, repeats=0)
