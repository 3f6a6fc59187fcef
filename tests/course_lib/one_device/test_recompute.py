import copy
from dataclasses import replace

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.resnet import ResNet18
from course_lib.observe.ledgers.flops import count_flops
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.recompute import apply_recompute, checkpoint, remove_recompute
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.predict.flops import hardware_flops, model_flops


def official(function, *args, **kwargs):
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)


def plain(function, *args, **kwargs):
    return function(*args, **kwargs)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters()]


def assert_same(a: list[Tensor | None], b: list[Tensor | None]) -> None:
    for x, y in zip(a, b, strict=True):
        assert (x is None and y is None) or x.equal(y)


def block(dropout: float = 0.5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 9), nn.Tanh(), nn.Dropout(dropout), nn.Linear(9, 4), nn.Dropout(dropout)
    )


@pytest.mark.parametrize("rival", [plain, official])
def test_gradients_with_dropout_are_the_same_bit_for_bit(rival):
    x = torch.randn(5, 6)
    results = []
    for run in (checkpoint, rival):
        model, inputs = block(), x.clone().requires_grad_()
        torch.manual_seed(1)
        y = run(model, inputs)
        after = torch.rand(3)  # the random stream goes on as if nothing had happened
        loss = (y + torch.dropout(y, 0.3, True)).square().sum()
        loss.backward()
        results.append([loss, after, torch.rand(3), inputs.grad, *gradients(model)])
    assert_same(*results)


def test_every_kind_of_argument_and_result():
    """Nested results, flags and strings, tensors without gradient, keyword tensors, weights from elsewhere."""
    weight = torch.randn(4, requires_grad=True)

    def function(x, settings, power: int, *, mask, name="twice"):
        y = torch.where(mask, x, 0) ** power * weight
        return {
            "y": [y, (y.exp(), name)],
            "index": y.argmax(),
            "sum": (y * settings["scale"]).sum(),
            "none": None,
        }

    results = []
    for run in (checkpoint, official, plain):
        x, scale = torch.arange(1.0, 5.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
        weight.grad = None
        out = run(function, x, {"scale": scale}, 2, mask=torch.tensor([True, False, True, True]))
        assert out["y"][1][1] == "twice"
        assert out["none"] is None
        (out["y"][0].sum() + out["y"][1][0].log().sum() + out["sum"]).backward()
        results.append([x.grad, scale.grad, weight.grad, out["index"]])
    assert_same(results[0], results[2])
    assert_same(results[1], results[2])


def test_only_a_late_tensor_needs_a_gradient():
    model = block()
    model[0].requires_grad_(False)
    other = copy.deepcopy(model)
    x = torch.randn(3, 6)
    for run, m in ((checkpoint, model), (plain, other)):
        torch.manual_seed(2)
        run(m, x).sum().backward()
    assert_same(gradients(model), gradients(other))


def test_autocast_is_restored():
    x, results = torch.randn(3, 6), []
    for run in (checkpoint, official, plain):
        model = block()
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            y = run(model, x)
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()  # outside of autocast, as everyone does
        results.append(gradients(model))
    assert_same(results[0], results[2])
    assert_same(results[1], results[2])


def test_nothing_is_kept_but_the_arguments():
    kept = []

    def spy(x):
        y = x.exp()
        kept.append(torch.multiprocessing.reductions.StorageWeakRef(y.untyped_storage()))
        return y.sin().cos()  # saves exp and sin

    x = torch.randn(4, requires_grad=True)
    out = plain(spy, x)
    assert not kept[-1].expired()
    again = checkpoint(spy, x)
    assert kept[-1].expired()
    again.sum().backward()
    assert len(kept) == 3
    assert kept[-1].expired()
    assert out.equal(again)


def test_without_gradients_it_is_the_function_itself():
    calls = []
    with torch.no_grad():
        checkpoint(calls.append, 1)
    assert calls == [1]


def test_a_graph_kept_for_a_second_backward_and_a_second_derivative():
    x = torch.randn(4, requires_grad=True)
    y = checkpoint(lambda x: (x.sin() * x).exp(), x)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    second = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
    assert first.equal(second)
    curvature = torch.autograd.grad(second.sum(), x)[0]
    z = (x.sin() * x).exp()
    expected = torch.autograd.grad(torch.autograd.grad(z.sum(), x, create_graph=True)[0].sum(), x)[0]
    torch.testing.assert_close(curvature, expected)


def test_one_inside_the_other_keeps_the_arguments_of_the_outer_one():
    x = torch.randn(4, requires_grad=True)
    inner = []

    def function(x):
        y = x.exp()
        inner.append(torch.multiprocessing.reductions.StorageWeakRef(y.untyped_storage()))
        return checkpoint(torch.sin, y)

    out = checkpoint(function, x)
    assert inner[0].expired()
    out.sum().backward()
    torch.testing.assert_close(x.grad, x.exp().cos() * x.exp())


def test_one_inside_the_other():
    x, results = torch.randn(5, 6), []
    for run in (checkpoint, plain):
        model, tail = block(), nn.Linear(4, 2)
        nn.init.ones_(tail.weight)
        torch.manual_seed(1)
        run(lambda x, model=model, tail=tail, run=run: tail(run(model, x).tanh()).sin(), x).sum().backward()
        results.append([*gradients(model), *gradients(tail)])
    assert_same(*results)


def test_an_argument_changed_in_place_is_noticed():
    x = torch.randn(4, requires_grad=True)
    y = x * 2
    out = checkpoint(torch.exp, y.sin()) + checkpoint(lambda t: t.sin().exp(), y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_forward_that_differs_is_noticed():
    calls = []

    def fickle(x):
        calls.append(1)
        return x[: len(calls)].exp().sin()

    def shorter(x):
        calls.append(1)
        return x.exp().sin() if len(calls) == 1 else x.exp()

    x = torch.randn(4, requires_grad=True)
    out = checkpoint(fickle, x)
    with pytest.raises(
        RuntimeError, match=r"saved tensor 1 of 2 was float32\[1\] on cpu, now float32\[2\] on cpu"
    ):
        out.sum().backward()
    calls.clear()
    out = checkpoint(shorter, x)
    with pytest.raises(RuntimeError, match=r"saved tensor 2 of 2 was float32\[4\] on cpu, now missing"):
        out.sum().backward()


# ---- models -----------------------------------------------------------------------------------------------


def train_twice(model: nn.Module, inputs: Tensor, loss_of) -> list[Tensor]:
    torch.manual_seed(3)
    losses = []
    for _ in range(2):
        losses.append(loss_of(model(inputs)))
        losses[-1].backward()
    return [*losses, *gradients(model), *model.buffers()]


@pytest.mark.parametrize("what", ["full", "selective", "blocks.*.mlp", ["blocks.1", "blocks.*.attention"]])
def test_gpt_with_dropout_and_tied_embeddings(what):
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny(num_layers=2, hidden_size=32, dropout=0.2))
    recomputed = copy.deepcopy(model)
    apply_recompute(recomputed, what)
    assert recomputed.state_dict().keys() == model.state_dict().keys()
    tokens = torch.randint(256, (3, 17))
    results = [
        train_twice(m, tokens, lambda y: cross_entropy(y[:, :-1], tokens[:, 1:])) for m in (recomputed, model)
    ]
    assert_same(*results)


def test_resnet_updates_its_running_averages_once():
    torch.manual_seed(0)
    model = ResNet18(10, 1, small_images=True, width=8)
    recomputed = copy.deepcopy(model)
    assert len(apply_recompute(recomputed, "full")) == 8
    images = torch.rand(4, 1, 8, 8)
    assert_same(*(train_twice(m, images, lambda y: y.square().sum()) for m in (recomputed, model)))


@pytest.mark.parametrize(("what", "name"), [("full", ""), ("selective", ".attention.self.core")])
def test_bert(what, name):
    torch.manual_seed(0)
    model = Bert(BertConfig.tiny(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1))
    recomputed = copy.deepcopy(model)
    assert apply_recompute(recomputed, what) == [f"encoder.layer.{i}{name}" for i in (0, 1)]
    tokens = torch.randint(1000, (2, 9))
    assert_same(*(train_twice(m, tokens, lambda y: y.square().sum()) for m in (recomputed, model)))


def test_names():
    model = GPT(GPTConfig.tiny(num_layers=2))
    assert apply_recompute(model, "full") == ["blocks.0", "blocks.1"]
    remove_recompute(model)
    assert apply_recompute(model, "selective") == ["blocks.0.attention.core", "blocks.1.attention.core"]
    copied = copy.deepcopy(model)
    assert copied.blocks[0].attention.core.forward.args[0].__self__ is copied.blocks[0].attention.core
    remove_recompute(model)
    assert "forward" not in vars(model.blocks[0].attention.core)
    with pytest.raises(
        ValueError, match=r"GPT has no submodule that matches layers\.\*; it has embedding, .*blocks\.1"
    ):
        apply_recompute(model, "layers.*")


# ---- what it costs ----------------------------------------------------------------------------------------


def flops(what: str | None, dropout: float, **shape: int):
    with torch.device("meta"):
        model = GPT(GPTConfig(dropout=dropout, **shape))
        tokens = torch.zeros(2, shape["max_length"], dtype=torch.long)
    if what:
        apply_recompute(model, what)
    return count_flops(model, tokens)


SHAPE = {"vocab_size": 100, "max_length": 32, "num_layers": 3, "num_heads": 4, "hidden_size": 64}


def test_full_recomputation_is_one_more_forward():
    b, s, h, l, V = 2, 32, 64, 3, 100
    layers = l * (24 * b * s * h**2 + 4 * b * s**2 * h)
    normal = flops(None, 0.1, **SHAPE)
    assert normal == (layers + 2 * b * s * h * V, 2 * (layers + 2 * b * s * h * V))
    assert flops("full", 0.1, **SHAPE).backward == normal.backward + layers
    # Without dropout nothing is saved after a block's last product, (batch, seq, 4h) by (4h, h): it is spared.
    assert flops("full", 0.0, **SHAPE).backward == normal.backward + layers - l * 8 * b * s * h**2


@pytest.mark.parametrize(("name", "published"), [("gpt3-175b", 0.027), ("gpt-530b", 0.016)])
def test_selective_recomputation_of_the_papers_models(name, published):
    """arXiv:2205.05198, section 5: two layers at full width on ``meta``, beside the formula."""
    shape, b = replace(MODELS[name], layers=2), 2
    sizes = {"vocab_size": shape.vocab, "max_length": shape.sequence, "num_layers": 2}
    sizes |= {"num_heads": shape.heads, "hidden_size": shape.hidden}
    normal, selective = flops(None, 0.1, **sizes), flops("selective", 0.1, **sizes)
    assert sum(normal) == sum(model_flops(shape, b).values())
    # The core is two products of 2 b s² h each. The second's result is not needed again: half a core is repeated.
    measured = selective.backward - normal.backward
    assert measured == 2 * 2 * b * shape.sequence**2 * shape.hidden
    # The paper charges three cores, those of a whole step: six times what has to be computed.
    assert hardware_flops(shape, Plan(recompute="selective"), b)["recomputation"] == 6 * measured
    layers = sum(normal) - 6 * b * shape.sequence * shape.hidden * shape.vocab
    assert 6 * measured / layers == pytest.approx(published, abs=0.001)
