"""Chapter 19: what compresses, and matrices by which ranks average."""

import torch
from torch import Tensor


def largest(k: int, tensor: Tensor) -> Tensor:
    """The k numbers of the largest absolute values, and zeros for the others."""
    flat = tensor.flatten()
    kept = flat.abs().topk(min(k, flat.numel())).indices
    return torch.zeros_like(flat).index_copy(0, kept, flat[kept]).view_as(tensor)


def signs(tensor: Tensor) -> Tensor:
    """One bit for each number: its sign, times the mean absolute value."""
    return torch.where(tensor < 0, -1.0, 1.0).to(tensor) * tensor.abs().mean()


def pair(own: float) -> Tensor:
    return torch.tensor([[own, 1 - own], [1 - own, own]], dtype=torch.float64)


def mean_of(ranks: int, steps: tuple[int, ...] = (-1, 0, 1)) -> Tensor:
    eye = torch.eye(ranks, dtype=torch.float64)
    return sum(eye.roll(step, 1) for step in steps) / len(steps)


def random_matrix(ranks: int, seed: int) -> Tensor:
    """A mean of permutations and of what undoes them: symmetric, each row and each column adds up to 1."""
    draw, total = torch.Generator().manual_seed(seed), torch.zeros(ranks, ranks, dtype=torch.float64)
    for weight in torch.rand(3, dtype=torch.float64, generator=draw).softmax(0):
        swap = torch.eye(ranks, dtype=torch.float64)[torch.randperm(ranks, generator=draw)]
        total += weight * (swap + swap.T) / 2
    return 0.9 * total + 0.1 / ranks  # connected
