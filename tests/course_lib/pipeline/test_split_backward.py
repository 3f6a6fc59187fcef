"""A backward in two parts gives the gradients of a whole one, does no work twice, and frees what it no longer needs."""

import gc
import weakref
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.models.gpt import Block, GPTConfig
from course_lib.models.llama import LlamaConfig, LlamaLayer
from course_lib.one_device.recompute import apply_recompute
from course_lib.pipeline.split_backward import SplitBackward


class Reused(nn.Module):
    """One weight at two places, a norm between them."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return self.linear(self.norm(self.linear(x).tanh()))


class SharedBesideThePath(nn.Module):
    """What is made of a weight once joins the path twice."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        square = self.weight @ self.weight
        return F.linear(F.linear(x, square).relu(), square)


class SeveralOutputs(nn.Module):
    """One output depends on weights alone and is returned twice, one has no gradient."""

    def __init__(self):
        super().__init__()
        self.linear, self.table = nn.Linear(8, 8), nn.Parameter(torch.randn(4, 8))

    def forward(self, x):
        table = self.table * 2
        return self.linear(x), table, x.detach(), table


class PassedOn(nn.Module):
    """The input itself is an output, too."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x, self.linear(x)


def frozen():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model[0].requires_grad_(False)
    return model


def recomputed():
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)))
    apply_recompute(model, ["1"])
    return model


BUILD = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.0), nn.Linear(16, 8)),
    "gpt": lambda: Block(GPTConfig.tiny(hidden_size=8, num_heads=2)),
    "llama": lambda: LlamaLayer(LlamaConfig.tiny(hidden_size=8, intermediate_size=16)),
    "convolution": lambda: nn.Sequential(nn.Unflatten(-1, (2, 4)), nn.Flatten(0, 1), nn.Conv1d(2, 3, 1)),
    "recurrent": lambda: nn.GRU(8, 8),
    "one weight at two places": Reused,
    "a product of weights at two places": SharedBesideThePath,
    "several outputs": SeveralOutputs,
    "the input is an output": PassedOn,
    "a frozen layer": frozen,
    "no weight": nn.Tanh,
    "recomputed": recomputed,
}


def outputs_of(model, x):
    outputs = model(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    outputs = [y for y in outputs if y.requires_grad]
    generator = torch.Generator().manual_seed(2)
    return outputs, [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in outputs]


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("has_gradient", [True, False], ids=["input", "first stage"])
def test_equals_a_whole_backward(name, has_gradient):
    torch.manual_seed(0)
    model = BUILD[name]().double()
    x = torch.randn(4, 3, 8, dtype=torch.float64, requires_grad=has_gradient)
    if not has_gradient and not list(model.parameters()):
        pytest.skip("nothing has a gradient")
    for _ in range(2):  # accumulated, as over two microbatches
        outputs, gradients = outputs_of(model, x)
        torch.autograd.backward(outputs, gradients)
    tensors = [x, *model.parameters()]
    expected = [t.grad for t in tensors]
    model.zero_grad()
    x.grad = None

    first = next((p for p in model.parameters() if p.requires_grad), None)
    for _ in range(2):
        outputs, gradients = outputs_of(model, x)
        before = [p.grad is None for p in model.parameters() if p is not first]
        split = SplitBackward(
            [get_gradient_edge(y) for y in outputs], gradients, [x] if has_gradient else [first]
        )
        after = [p.grad is None for p in model.parameters() if p is not first]
        assert after == before, "weights come later"
        split.weights()
    for tensor, gradient in zip(tensors, expected, strict=True):
        assert (tensor.grad is None) == (gradient is None)
        if gradient is not None:
            torch.testing.assert_close(tensor.grad, gradient)


class Products(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name in ("aten::mm", "aten::addmm", "aten::bmm")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["mlp", "gpt", "llama"])
def test_no_product_is_computed_twice(name):
    torch.manual_seed(0)
    model = BUILD[name]()
    x = torch.randn(4, 3, 8, requires_grad=True)
    outputs, gradients = outputs_of(model, x)
    with Products() as whole:
        torch.autograd.backward(outputs, gradients)
    outputs, gradients = outputs_of(model, x)
    with Products() as first:
        split = SplitBackward([get_gradient_edge(y) for y in outputs], gradients, [x])
    with Products() as second:
        split.weights()
    assert first.count + second.count == whole.count
    assert second.count == sum(isinstance(m, nn.Linear) for m in model.modules())


class Saved(torch.autograd.Function):
    """Saves a tensor for backward, and keeps a weak reference to it."""

    references: ClassVar[list] = []

    @staticmethod
    def forward(ctx, x):
        kept = x + 1
        ctx.save_for_backward(kept)
        Saved.references.append(weakref.ref(kept))
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (_,) = ctx.saved_tensors
        return gradient * 2


class Activations(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = self.first(x)
        self.after_first = weakref.ref(x)
        x = x.tanh()  # saves its result, which the second layer saves, too
        self.after_tanh = weakref.ref(x)
        return Saved.apply(self.second(x))


def test_only_what_weights_need_is_kept_between_the_parts():
    model, x = Activations(), torch.randn(4, 8, requires_grad=True)
    Saved.references.clear()
    y = model(x)
    split = SplitBackward([get_gradient_edge(y)], [torch.ones_like(y)], [x])
    del y
    gc.collect()
    [saved] = Saved.references
    assert saved() is None
    assert model.after_tanh() is not None
    split.weights()
    gc.collect()
    assert model.after_tanh() is None


def test_what_was_freed_is_missed_with_a_sentence():
    model, x = Activations(), torch.randn(4, 8, requires_grad=True)
    y = model(x)
    SplitBackward([get_gradient_edge(y)], [torch.ones_like(y)], [x])
    with pytest.raises(RuntimeError, match="was freed after the gradient of its input"):
        y.sum().backward()
