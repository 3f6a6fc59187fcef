"""The stages of 11.4, and how many microbatches one of them has at once."""

import weakref
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, HIDDEN = 24, 16


class Mixer(nn.Module):
    """A layer that keeps the rows of the batch apart, as a transformer's does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 32), nn.Linear(32, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def stage(rank: int, ranks: int) -> nn.Sequential:
    torch.manual_seed(rank)
    first, last = [nn.Embedding(WORDS, HIDDEN)], [nn.Linear(HIDDEN, WORDS)]
    return nn.Sequential(*first * (rank == 0), Mixer(), *last * (rank == ranks - 1))


class Mark(torch.autograd.Function):
    """Gives back what it gets, and counts the graphs behind it that have neither been used nor gone away."""

    @staticmethod
    def forward(ctx, output: Tensor, begun: dict[str, int]) -> Tensor:
        begun["now"] += 1
        begun["most"] = max(begun.values())
        ctx.graph = type("Graph", (), {})()  # lives as long as this node of autograd
        ctx.ended = weakref.finalize(ctx.graph, lambda: begun.update(now=begun["now"] - 1))
        return output.view_as(output)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.ended()
        return gradient, None


def counting(begun: dict[str, int]) -> Callable[..., Tensor | None]:
    """A forward hook that counts microbatches: ``begun["now"]``, and ``begun["most"]`` at once."""

    def hook(module: nn.Module, args, output: Tensor) -> Tensor | None:
        # PyTorch finds out the shapes with tensors that hold nothing.
        real = output.requires_grad and not output.is_meta and type(output) is Tensor
        return Mark.apply(output, begun) if real else None

    return hook
