"""Recomputation by hand: keep a block's input in place of all that its
backward needs, and run its forward again when backward gets there.

Also known as activation checkpointing (Chen et al., arXiv:1604.06174).
Three rungs. A block as one operation, whose backward runs forward and
backward. Every tensor that autograd saves in a block, replaced by a
number until it is needed. And the same for attention alone, without its
linear layers: many bytes, few FLOPs (Korthikanti et al.,
arXiv:2205.05198).

A layer of width h and a heads saves about s b h (34 + 5 a s / h) bytes
of b texts of s tokens in 16 bits, its input has 2 s b h. A whole block
costs one more forward, a third of a step's FLOPs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils import get_total_norm

from course_lib.runtime import trace


class OneOperation(torch.autograd.Function):
    """First rung: autograd sees a block as one operation, and saves
    nothing inside. ``x`` must need a gradient, or there is none."""

    @staticmethod
    def forward(ctx: Any, function: Callable, x: Tensor) -> Tensor:
        ctx.function, ctx.random = function, random_state()
        ctx.save_for_backward(x)
        return function(x)  # autograd looks away while it runs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with again(ctx.random):
            y = ctx.function(x)
        torch.autograd.backward(y, gradient)  # parameters' .grad, too
        return None, x.grad


class Region:
    """Second rung: one call of a function of any tensors. Autograd
    hands each tensor that it would save to ``pack``, keeps what that
    returns, and gives it to ``unpack`` in backward."""

    def __init__(self, function: Callable, inputs: tuple) -> None:
        self.function, self.inputs = function, inputs
        self.random = random_state()
        self.count = 0  # tensors that autograd would have saved
        self.recomputed: dict[int, Tensor] = {}

    def forward(self) -> Tensor:
        with saved_tensors_hooks(self.pack, self.unpack):
            return self.function(*self.inputs)

    def pack(self, tensor: Tensor) -> int:
        """The trick: its number is kept, so its memory is freed."""
        self.count += 1
        return self.count - 1

    def unpack(self, number: int) -> Tensor:
        if number not in self.recomputed:
            self.recompute()
        return self.recomputed.pop(number)  # freed after its use

    def recompute(self) -> None:
        """The second forward saves the same tensors in the same order.
        Its own graph is thrown away: the first one's is used."""
        saved: list[Tensor] = []

        def keep(tensor: Tensor) -> None:
            saved.append(tensor.detach())

        with again(self.random), saved_tensors_hooks(keep, lambda _: _):
            self.function(*self.inputs)
        if len(saved) != self.count:
            raise RuntimeError("the second forward is another one")
        self.recomputed = dict(enumerate(saved))


def checkpoint(function: Callable, *inputs: Tensor) -> Tensor:
    """``function(*inputs)``, keeping the inputs alone for backward."""
    return Region(function, inputs).forward()


def random_state() -> tuple:
    """Dropout must drop the same elements again."""
    return torch.get_rng_state(), torch.cuda.get_rng_state_all()


@contextmanager
def again(random: tuple) -> Iterator[None]:
    """A second forward inside backward, where gradients are off."""
    with (
        torch.random.fork_rng(),
        torch.enable_grad(),
        trace.span("computation", "recompute"),
    ):
        torch.set_rng_state(random[0])
        torch.cuda.set_rng_state_all(random[1])
        yield


def blocks(model: nn.Module) -> list[nn.Module]:
    return list(model.blocks)


def attention(model: nn.Module) -> list[nn.Module]:
    """Third rung: what stands between attention's linear layers."""
    return [block.attention.core for block in model.blocks]


def train(
    model,
    batches,
    make_optimizer,
    loss_fn,
    repeat=checkpoint,
    modules=blocks,
):
    """Yields each step's loss and gradient norm."""
    for module in modules(model):
        module.forward = partial(repeat, module.forward)
    parameters = list(model.parameters())
    optimizer = make_optimizer(parameters)
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        norm = get_total_norm([w.grad for w in parameters])
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm


RUNGS = {
    "one operation": {"repeat": OneOperation.apply},
    "full": {},
    "selective": {"modules": attention},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main

    plans = dict.fromkeys(RUNGS, "full") | {"selective": "selective"}
    main(train, RUNGS, most=1, recompute=plans)
