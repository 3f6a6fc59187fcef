"""The norm of the whole gradient, where ranks have parts of it, copies of it, or both.

``torch.nn.utils.clip_grad_norm_`` takes the norm of what this rank has. It differs by rank, so each rank would scale
its gradients by another factor, and parameters that several ranks hold would drift apart.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


@torch.no_grad()
def clip_grad_norm(
    held: Iterable[tuple[Tensor, int]],
    max_norm: float,
    group: ProcessGroup | None,
    device: torch.device | str,
    error_if_nonfinite: bool = True,
) -> Tensor:
    """Scale gradients in place so that the norm over all ranks is at most ``max_norm``; return the norm before.

    Args:
        held, group, device: as in ``grad_norm``.

    Raises:
        ValueError: the norm is not finite and ``error_if_nonfinite``. Every rank raises it, and nothing is changed.
    """
    held = list(held)
    norm = grad_norm(held, group, device)
    if error_if_nonfinite and not norm.isfinite():
        raise ValueError(
            f"the norm of the gradient is {norm:g}, so no gradient was changed, and no parameter was updated: it is "
            "not finite on some rank; call zero_grad, and look at the loss of this batch or lower the learning rate"
        )
    scale_gradients((gradient for gradient, _ in held), norm, max_norm)
    return norm


@torch.no_grad()
def grad_norm(
    held: Iterable[tuple[Tensor, int]], group: ProcessGroup | None, device: torch.device | str
) -> Tensor:
    """The root of the sum of all squares, each element counted once: one all-reduce of one number.

    Args:
        held: each gradient that this rank has, and how many ranks of ``group`` hold the same elements.
        device: where the ranks' squares are added up.

    Returns:
        The norm in float64, (), the same on every rank of ``group``.
    """
    square = torch.zeros((), dtype=torch.float64, device=device)
    for gradient, holders in held:
        # in 16 bits the norm itself would be rounded
        norm = gradient.norm(dtype=torch.promote_types(gradient.dtype, torch.float32))
        square += norm.to(square).square() / holders
    dist.all_reduce(square, group=group)
    return square.sqrt()


@torch.no_grad()
def scale_gradients(gradients: Iterable[Tensor], norm: Tensor, max_norm: float) -> None:
    """Scale gradients in place so that the norm of all of them together, which is ``norm``, is at most ``max_norm``.

    The factor is that of ``torch.nn.utils.clip_grad_norm_``: max_norm / (norm + 1e-6), and at most 1. It is a number of
    Python, since a tensor of it in 16 bits would be rounded.
    """
    factor = float(max_norm / (norm + 1e-6))
    if factor >= 1:  # not a number is less than nothing: as torch does, it then spreads to all gradients
        return
    for gradient in gradients:
        gradient.mul_(factor)
