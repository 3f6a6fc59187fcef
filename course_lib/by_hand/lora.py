"""LoRA by hand: a pretrained matrix stays as it is, and a change of low
rank r beside it is trained (Hu et al., arXiv:2106.09685):

    h = W x + (alpha / r) B A x        W (d, k), B (d, r), A (r, k)

Gradients and optimizer states exist for r (d + k) numbers in place of
d k. B starts with zeros, so training starts from the pretrained model.

Two rungs: the change as a matrix of W's shape, which costs a matrix and
its gradient in every layer; and the two narrow products one after the
other, which never make it. They differ in rounding alone. After
training the change is added to W, and the model is as fast as it was.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


class AsMatrix(nn.Module):
    """First rung: W + (alpha / r) B A, anew in every forward."""

    def __init__(self, linear: nn.Linear, r: int, alpha: float) -> None:
        super().__init__()
        self.linear, self.scale = linear, alpha / r
        d, k = linear.weight.shape
        self.A = nn.Parameter(linear.weight.new_empty(r, k))
        self.B = nn.Parameter(linear.weight.new_zeros(d, r))
        nn.init.kaiming_uniform_(self.A, a=5**0.5)  # as nn.Linear

    def change(self) -> Tensor:
        return self.scale * (self.B @ self.A)  # (d, k)

    def forward(self, x: Tensor) -> Tensor:  # (..., k) -> (..., d)
        weight = self.linear.weight + self.change()
        return F.linear(x, weight, self.linear.bias)


class LoRA(AsMatrix):
    """Second rung: x becomes narrow, (..., r), and wide again."""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.scale * (x @ self.A.T) @ self.B.T


def apply(
    model: nn.Module,
    names=("query", "value"),
    r: int = 8,
    alpha: float = 16,
    layer=LoRA,
) -> list[nn.Parameter]:
    """Wraps the linear layers of these names, in place, and freezes all
    else. Returns what is trained."""
    for w in model.parameters():
        w.requires_grad_(False)
    trained = []
    for path, module in list(model.named_modules()):
        parent, _, name = path.rpartition(".")
        if name in names:
            wrapped = layer(module, r, alpha)
            setattr(model.get_submodule(parent), name, wrapped)
            trained += [wrapped.A, wrapped.B]
    return trained


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Adds each change to its matrix, and takes the layers out."""
    for path, module in list(model.named_modules()):
        if isinstance(module, AsMatrix):
            module.linear.weight += module.change()
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, module.linear)


def train(
    model, batches, make_optimizer, loss_fn, adapt=apply, **settings
):
    """Yields each step's loss and gradient norm; at the end ``model``
    is a plain one again."""
    trained = adapt(model, **settings)
    optimizer = make_optimizer(trained)
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        norm = get_total_norm([w.grad for w in trained])
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm
    merge(model)


RUNGS = {
    "the change as a matrix": {"layer": AsMatrix},
    "two products": {"layer": LoRA},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand.finetune import main

    main(train, RUNGS)
