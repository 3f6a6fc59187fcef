import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, Block, GPTConfig
from course_lib.models.resnet import ResNet18
from course_lib.observe.ledgers.saved import (
    itemise_layer,
    saved_bytes_by_module,
    saved_tensors,
)
from course_lib.one_device.recompute import apply_recompute
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.memory import kept_layer_bytes, layer_bytes

B, S, H, A = 3, 24, 32, 4


def real_bytes(model: nn.Module, *inputs: torch.Tensor) -> int:
    """The same count with data: storages that are neither parameters nor buffers."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    found = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return t

    inputs = [t.requires_grad_(t.is_floating_point()) for t in inputs]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = model(*inputs)  # kept, so that no storage is freed and its address used again
    assert output is not None
    return sum(found.values())


def test_who_made_and_who_saved_each_tensor():
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    saved = saved_tensors(model, torch.zeros(4, 3))
    assert [(t.made_in, t.producer, t.saved_in, t.shape, t.bytes) for t in saved] == [
        ("", "input", "0", (4, 3), 48),
        ("1", "tanh", "1", (4, 5), 80),  # tanh keeps its result, which the next layer keeps too: once
    ]


def test_in_place_operators_write_and_views_do_not():
    class Net(nn.Module):
        def forward(self, x):
            return (x * 2).relu_().view(-1).sin()

    saved = saved_tensors(Net(), torch.zeros(2, 3))
    assert [(t.producer, t.bytes) for t in saved] == [("relu_", 24)]


MODELS = {
    "gpt": lambda: (GPT(GPTConfig.tiny(num_layers=2, dropout=0.1)), torch.zeros(2, 16, dtype=torch.long)),
    "bert": lambda: (Bert(BertConfig.tiny(), pooler=True), torch.zeros(2, 9, dtype=torch.long)),
    "resnet": lambda: (ResNet18(10, width=8), torch.zeros(2, 3, 32, 32)),
}


@pytest.mark.parametrize("name", MODELS)
def test_fake_tensors_save_what_real_ones_do(name):
    model, x = MODELS[name]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = saved_bytes_by_module(model, x)
    assert all(value.equal(before[key]) for key, value in model.state_dict().items()), (
        "the model stays as it is"
    )
    assert sum(found.values()) == sum(t.bytes for t in saved_tensors(model, x)) == real_bytes(model, x)


def test_by_module():
    model, x = MODELS["resnet"]()
    found = saved_bytes_by_module(model, x)
    assert list(found) == ["conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4", "fc"]
    assert found["conv1"] == 4 * 2 * 3 * 32 * 32, "the images"
    assert found["bn1"] == 4 * 2 * 8 * 16 * 16 + 2 * 4 * 8, "the convolution's result, mean and deviation"
    assert found["fc"] == 4 * 2 * 64
    deeper = saved_bytes_by_module(model, x, depth=2)
    assert deeper["layer1.0"] + deeper["layer1.1"] == found["layer1"]


# ---- one layer against the paper --------------------------------------------------------------------------


def layer(dropout: float, backend: SDPBackend) -> dict[str, tuple[int, int]]:
    block = Block(GPTConfig.tiny(hidden_size=H, num_heads=A, dropout=dropout))
    with sdpa_kernel(backend):
        saved = saved_tensors(block, torch.zeros(B, S, H))
    terms = itemise_layer(saved, B, S, H, A)
    assert sum(t.measured for t in terms) == sum(t.bytes for t in saved)
    return {t.name: (t.predicted, t.measured) for t in terms}


def test_a_layer_is_the_papers_formula_term_by_term():
    """sbh (34 + 5as/h), arXiv:2205.05198, at 4 bytes an element."""
    terms = layer(0.1, SDPBackend.MATH)
    predicted = ModelShape(1, H, A, 100, S), Plan(micro_batch=B, precision="fp32")
    assert sum(p for p, _ in terms.values()) == layer_bytes(*predicted)
    masks = {"its dropout mask", "dropout mask of the projection", "dropout mask of the MLP"}
    for name, (formula, measured) in terms.items():
        if name in masks:
            assert measured == 4 * formula, "a mask is one byte in the paper and a float on the CPU"
        elif name.startswith("statistics"):
            assert (formula, measured) == (0, 4 * 4 * B * S)
        else:
            assert measured == formula > 0, name


def test_without_dropout_masks_and_the_second_copy_of_the_scores_are_gone():
    terms = layer(0.0, SDPBackend.MATH)
    gone = {name for name, (_, measured) in terms.items() if measured == 0}
    assert gone == {
        "its dropout mask", "softmax after dropout", "dropout mask of the projection", "dropout mask of the MLP"
    }  # fmt: skip
    shape = ModelShape(1, H, A, 100, S, dropout=False)
    measured = sum(m for _, m in terms.values()) - terms["statistics of norms and softmax"][1]
    assert measured == layer_bytes(shape, Plan(micro_batch=B, precision="fp32"))


def test_fused_attention_saves_no_scores():
    terms = layer(0.0, SDPBackend.FLASH_ATTENTION)
    assert terms["softmax of the scores"][1] == 0
    assert terms["input of the projection"][1] == 4 * B * S * H
    shape = ModelShape(1, H, A, 100, S, dropout=False)
    norms = 4 * 4 * B * S
    assert sum(m for _, m in terms.values()) - norms == layer_bytes(
        shape, Plan(micro_batch=B, precision="fp32", attention="flash")
    )


def test_another_kind_of_layer_is_refused():
    saved = saved_tensors(nn.Sequential(nn.Tanh()), torch.zeros(B, S, H))
    with pytest.raises(ValueError, match="no term for what tanh made in '0' and '0' saved"):
        itemise_layer(saved, B, S, H, A)


@pytest.mark.parametrize("what", ["full", "selective"])
def test_recomputation_keeps_what_the_formula_says(what):
    """Full: the input of each block, 2 sbh at 2 bytes an element. Selective: all but the scores."""
    shape = ModelShape(2, H, A, 256, S)
    plan = Plan(micro_batch=B, precision="fp32", recompute=what)
    model = GPT(GPTConfig.tiny(num_layers=2, hidden_size=H, num_heads=A, dropout=0.1))
    apply_recompute(model, what)
    with sdpa_kernel(SDPBackend.MATH):
        saved = [
            t for t in saved_tensors(model, torch.zeros(B, S, dtype=torch.long)) if "blocks" in t.saved_in
        ]
    measured = sum(t.bytes for t in saved if t.shape[-1] > 1)
    wide_masks = sum(t.bytes * 3 // 4 for t in saved if t.producer == "div_")
    assert measured - wide_masks == 2 * kept_layer_bytes(shape, plan)


def test_a_model_may_come_as_the_function_that_builds_it():
    def build():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        first = model[0]  # no copy of the model would take this hook along
        model[1].register_forward_pre_hook(lambda _, args: (first(args[0]),))
        return model

    x = torch.zeros(3, 4)
    assert [t.saved_in for t in saved_tensors(build, x)] == ["0", "0", "1"]
    assert saved_tensors(lambda: nn.Linear(4, 4), x) == saved_tensors(nn.Linear(4, 4), x)
