"""A plain model cut into stages: called one after the other they are the model."""

import weakref
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masks import prefix_mask
from course_lib.one_device.recompute import apply_recompute
from course_lib.pipeline.stages import Stage, rank_stages, split_model
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.pipeline.schedules import make_schedule

TOKENS = torch.randint(0, 100, (2, 7), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(7) < torch.tensor([[7], [4]])).long()
SEES = prefix_mask(torch.tensor([2, 5]), 7)


def gpt(layers=6, **changes):
    torch.manual_seed(0)
    return GPT(GPTConfig.tiny(num_layers=layers, hidden_size=16, vocab_size=100, **changes))


def bert(**settings):
    torch.manual_seed(0)
    return Bert(BertConfig.tiny(num_hidden_layers=3), **settings)


def llama():
    torch.manual_seed(0)
    return Llama(LlamaConfig.tiny(hidden_size=16, intermediate_size=24, tie_word_embeddings=True))


CASES = {
    "gpt": (gpt, (TOKENS,), 4),
    "gpt, a layer a stage": (gpt, (TOKENS,), 6),
    "gpt, one stage": (gpt, (TOKENS,), 1),
    "gpt with masks": (gpt, (TOKENS, SEES), 3),
    "llama": (llama, (TOKENS,), 3),
    "llama with masks": (llama, (TOKENS, SEES), 3),
    "bert": (bert, (TOKENS,), 2),
    "bert with a mask": (bert, (TOKENS, MASK), 3),
    "bert with its pooler": (lambda: bert(pooler=True), (TOKENS, MASK, MASK), 3),
    "classifier": (lambda: BertClassifier(bert(pooler=True), 4).eval(), (TOKENS, MASK), 2),
    "sequential": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
        (torch.ones(3, 4),),
        2,
    ),
}


def run(stages, *tensors):
    for stage in stages:
        tensors = stage(*tensors)
        tensors = tensors if isinstance(tensors, tuple) else (tensors,)
    return tensors


@pytest.mark.parametrize("name", CASES)
def test_stages_one_after_the_other_are_the_model(name):
    make, inputs, count = CASES[name]
    model = make()
    expected = model(*inputs)
    stages = split_model(model, count)
    found = run(stages, *inputs)
    torch.testing.assert_close(found, expected if isinstance(expected, tuple) else (expected,))
    joined = {name: tensor for stage in stages for name, tensor in stage.state_dict().items()}
    assert joined.keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        assert tensor.data_ptr() == joined[key].data_ptr(), "nothing is copied"


def layers_of(stage):
    return len({name.split(".")[1] for name, _ in stage.named_parameters() if name.startswith("blocks.")})


def test_layers_are_dealt_out_as_a_plan_says():
    shape = ModelShape(layers=7, hidden=16, heads=2, vocab=100, sequence=8)
    for plan in (Plan(pp=3), Plan(pp=2, chunks=2), Plan(pp=3, stage_layers=(1, 4, 2))):
        stages = split_model(gpt(7), plan.stages, plan.stage_layers)
        assert [layers_of(stage) for stage in stages] == plan.layers_by_stage(shape)
    assert stages[0].parts == ["embedding", "blocks.0"]
    assert stages[2].parts == ["blocks.5", "blocks.6", "norm", "head"]


def test_each_rank_holds_the_stages_of_the_schedule():
    schedule = make_schedule("zb-v", 3, 6)
    held = [
        rank_stages(gpt(), schedule, SimpleNamespace(size=lambda: 3, get_local_rank=lambda r=rank: r))
        for rank in range(3)
    ]
    assert [sorted(stages) for stages in held] == [[0, 5], [1, 4], [2, 3]]
    assert held[0][0].tied == {"embedding.tokens.weight": (0, 5)}
    assert held[0][5].tied == {"head.weight": (0, 5)}
    assert held[0][0].embedding.tokens.weight is held[0][5].head.weight
    assert not held[1][1].tied
    names = Counter(name for stages in held for stage in stages.values() for name in stage.state_dict())
    assert set(names) == set(gpt().state_dict())
    assert set(names.values()) == {1}


def test_weights_of_other_stages_are_freed():
    model = gpt()
    references = {name: weakref.ref(p) for name, p in model.named_parameters(remove_duplicate=False)}
    stage = split_model(model, 3)[1]
    del model
    alive = {name for name, reference in references.items() if reference() is not None}
    assert alive == {name for name, _ in stage.named_parameters()}


def test_a_stage_of_a_model_without_memory():
    with torch.device("meta"):
        model = gpt()
    stage = split_model(model, 3)[2].to_empty(device="cpu")
    whole = gpt().state_dict()
    stage.load_state_dict({name: whole[name] for name in stage.state_dict()})
    expected = run(split_model(gpt(), 3)[2:], torch.ones(1, 2, 16))
    torch.testing.assert_close(run([stage], torch.ones(1, 2, 16)), expected)


def test_names_in_a_stage_are_those_of_the_model():
    stage = split_model(gpt(), 2)[1]
    assert apply_recompute(stage, "full") == ["blocks.3", "blocks.4", "blocks.5"]
    assert isinstance(stage, Stage)
    assert "stage 1 of 2: blocks.3, blocks.4, blocks.5, norm, head" in repr(stage)


class Left(nn.Module):
    """Has a parameter beside its layers."""

    def __init__(self):
        super().__init__()
        self.layers, self.scale = nn.ModuleList([nn.Linear(2, 2)]), nn.Parameter(torch.ones(2))


def hooked():
    model = bert()
    model.encoder.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("make", "settings", "sentence"),
    [
        (gpt, {"stages": 7}, "6 layers cannot be cut into 7 stages with at least one layer each"),
        (gpt, {"stages": 0}, "6 layers cannot be cut into 0 stages with at least one layer each"),
        (
            gpt,
            {"stages": 2, "layers": [3, 4]},
            r"layers must be 2 numbers of at least 1 with the sum 6, not \[3, 4\]",
        ),
        (
            gpt,
            {"stages": 2, "layers": [6, 0]},
            r"layers must be 2 numbers of at least 1 with the sum 6, not \[6, 0\]",
        ),
        (gpt, {"stages": 3, "layers": [3, 3]}, "layers must be 3 numbers"),
        (Left, {"stages": 1}, "there is a chain for GPT, Llama, .*, and none for Left: give one as chain="),
        (Left, {"stages": 1, "chain": ["layers.*"]}, r"scale is in no part of the chain layers\.0"),
        (Left, {"stages": 1, "chain": ["blocks.*"]}, "Left has no module blocks"),
        (hooked, {"stages": 2}, "encoder has hooks, but stages call the parts"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_sentence(make, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        split_model(make(), **settings)
