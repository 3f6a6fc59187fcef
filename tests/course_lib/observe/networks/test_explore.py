"""The tree of modules: its figures are those of the ledgers, add up, and stay the same; the model stays as it is."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib.models.bert import Bert, BertConfig
from course_lib.models.resnet import ResNet18
from course_lib.observe.ledgers.flops import count_flops, flops_by_module
from course_lib.observe.ledgers.saved import saved_bytes_by_module, saved_tensors
from course_lib.observe.networks.draw import draw
from course_lib.observe.networks.explore import explore_network
from course_lib.observe.networks.module_tree import OWN, module_tree
from course_lib.observe.networks.placement import Placement, colour_of, size_of

TOKENS = torch.ones(2, 8, dtype=torch.long)


def small_bert():
    return Bert(BertConfig.tiny(), pooler=True)


class Tied(nn.Module):
    """An embedding whose matrix also turns vectors into words, a bias and a product of its own, an unused module."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head, self.unused = nn.Embedding(9, 4), nn.Linear(4, 9), nn.Linear(4, 4)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return self.head(self.embedding(x) @ self.scale)


CASES = {
    "resnet": (ResNet18, torch.zeros(2, 3, 64, 64)),
    "bert": (small_bert, TOKENS),
    "tied": (Tied, TOKENS),
    "one module": (lambda: nn.Linear(4, 5), torch.zeros(3, 4)),
}


def all_in(module):
    yield module
    for inner in module.inside:
        yield from all_in(inner)


@pytest.fixture(params=CASES)
def case(request):
    make, x = CASES[request.param]
    return make(), x


def test_every_figure_is_the_ledgers(case):
    model, x = case
    tree = module_tree(model, x)
    rows = {row.name: row for row in all_in(tree) if row.kind != OWN}
    assert list(rows) == [name for name, _ in model.named_modules()]
    saved = saved_bytes_by_module(model, x, depth=9)
    for name, flops in flops_by_module(model, x).items():
        cost = rows[name].cost
        assert (cost.forward, cost.backward) == (flops.forward, flops.backward), name
        inside = [size for where, size in saved.items() if not name or f"{where}.".startswith(f"{name}.")]
        assert cost.saved == sum(inside), name
    assert tree.cost.parameters == size_of(model.parameters())
    assert tree.cost.saved == sum(tensor.bytes for tensor in saved_tensors(model, x))
    assert (tree.cost.forward, tree.cost.backward) == count_flops(model, x)


def test_what_is_inside_adds_up_to_the_module(case):
    model, x = case
    for row in all_in(module_tree(model, x)):
        if row.inside:
            assert tuple(map(sum, zip(*(inner.cost for inner in row.inside), strict=True))) == row.cost
            held = [name for inner in row.inside for name in inner.parameters]
            assert sorted(held) == sorted(row.parameters), row.name
        assert row.cost.parameters == size_of(row.parameters.values())


def test_forward_is_what_pytorch_counts_when_it_runs():
    model, x = ResNet18(), torch.zeros(2, 3, 64, 64)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    counts = {name.partition(".")[2]: sum(c.values()) for name, c in counter.get_flop_counts().items()}
    rows = [row for row in all_in(module_tree(model, x)) if row.kind != OWN]
    assert [row.cost.forward for row in rows] == [counts.get(row.name, 0) for row in rows]


def test_a_tied_parameter_counts_once_and_its_second_place_says_so():
    rows = {row.name: row for row in all_in(module_tree(Tied(), TOKENS))}
    assert rows["embedding"].cost.parameters == 9 * 4 * 4
    assert rows["head"].cost.parameters == 9 * 4
    assert rows["own"].cost.parameters == 4 * 4 * 4
    assert rows["own"].cost.forward == 2 * TOKENS.numel() * 4 * 4
    assert [name for name, row in rows.items() if row.shared] == ["head"]
    assert (rows["head"].shape, rows["unused"].shape) == ("2×8×9", "")
    assert "Some of its parameters count in a module before it." in explore_network(Tied(), TOKENS).fragment()


def test_a_row_has_the_colours_of_its_ranks():
    plan = {"": (2, 3), "embeddings": (0, 1), "encoder.layer.0": 0}
    shown = explore_network(small_bert(), TOKENS, placement=plan, label="shard", depth=9).fragment()
    rows = dict(re.findall(r'title="([\w.]+) \(.*?<span>(.*?)<b>', shown))
    placement = Placement(small_bert(), plan, "shard")
    for name in ("embeddings", "encoder.layer.0.attention", "encoder.layer.1", "pooler.dense"):
        found = re.findall(r'background:(#\w+)">(\d)<', rows[name])
        assert found == [(colour_of(rank), str(rank)) for rank in placement.of(name)], name
    assert len(re.findall("<i ", rows["encoder"])) == 3, (
        "layer 0 is on shard 0, the others are on shards 2 and 3"
    )
    picture = draw(small_bert(), TOKENS, placement=plan, label="shard")
    assert all(text in picture.alt and text in shown for _, text in placement.legend())


def test_the_model_stays_as_it_is_and_the_tree_is_the_same_each_time():
    model, x = small_bert().train(), TOKENS
    before, mode = copy.deepcopy(model.state_dict()), model.training
    first, second = (explore_network(model, x).still() for _ in range(2))
    assert first == second
    assert model.training == mode
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert "script" not in first["text/html"]
    assert first["text/plain"].startswith("Modules of Bert: ")


def test_a_name_ends_no_tag():
    class Odd(nn.Module):
        forward = nn.ReLU.forward
        inplace = False

    Odd.__name__ = "</ul><script>"
    page = explore_network(nn.Sequential(Odd()), torch.zeros(2)).html()
    assert page.count("<script") == 1
    assert page.count("</script>") == 1


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("depth must be a whole number of 0 or more, not -1", {"depth": -1}),
        ("Linear has no submodule 'fc'; it has none", {"placement": {"fc": 0}}),
        ("the holder of '' must be a number from 0, or several, not -2", {"placement": {"": -2}}),
        (r"Linear could not be run on inputs \(3, 7\): ", {}),
    ],
)
def test_a_wrong_call_gets_one_sentence(said, arguments):
    with pytest.raises(ValueError, match=f"^{said}"):
        explore_network(nn.Linear(4, 5), torch.zeros(3, 7), **arguments)
