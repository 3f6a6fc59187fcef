"""The matrix products that full recomputation would repeat: what each result takes, and what it costs again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry, sdpa_flop_count


class Product(NamedTuple):
    """One call of an operator.

    Args:
        op: the operator, as a policy of PyTorch's selective checkpoint is given it.
        bytes: of all its results.
        flops: of the call; a multiplication and an addition are two.
    """

    op: Any
    bytes: int
    flops: int


class RecordProducts(TorchDispatchMode):
    """Notes every matrix product that runs while ``module``'s forward runs, in order; backward's own are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[Product] = []
        self.inside = 0

    @contextmanager
    def forward_of(self, module: nn.Module) -> Iterator[None]:
        """Count what runs in ``module.forward``, whether it is called in forward or recomputed in backward."""
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            self.inside += 1
            try:
                return original(*args, **kwargs)
            finally:
                self.inside -= 1

        module.forward = forward
        try:
            yield
        finally:
            del module.forward

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.inside and (flops := flops_of(func, args, kwargs or {}, result)):
            size = sum(t.nbytes for t in tree_leaves(result) if isinstance(t, Tensor))
            self.products.append(Product(func, size, flops))
        return result


def flops_of(op: Any, args: tuple, kwargs: dict, result: Any) -> int:
    """FLOPs of one call; 0 for an operator that is not a matrix product."""
    packet = op.overloadpacket
    if packet in flop_registry:
        return flop_registry[packet](*args, **kwargs, out_val=result)
    aten = torch.ops.aten  # of fused attention the registry knows the GPU's alone
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        return sdpa_flop_count(*(t.shape for t in args[:3]))
    if packet is aten._scaled_dot_product_flash_attention_for_cpu_backward:
        # Four products; what is repeated is left out.
        return 2 * sdpa_flop_count(*(t.shape for t in args[1:4]))
    return 0


def repeated_products(block: nn.Module, x: Tensor) -> list[Product]:
    """The matrix products that backward repeats when all of ``block(x)`` is recomputed, in the order of forward.

    A product whose result backward does not need, and nothing behind it, is not repeated: it is not in the list.
    ``block`` gets no gradients from this.
    """
    x = x.detach().requires_grad_()
    trained = [x, *(p for p in block.parameters() if p.requires_grad)]
    record = RecordProducts()
    with record.forward_of(block):
        y = checkpoint(block, x, use_reentrant=False)
        with record:
            torch.autograd.grad(y.sum(), trained, allow_unused=True)
    return record.products
