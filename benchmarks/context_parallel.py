"""The course's ring attention beside PyTorch's: forward and backward of one layer's attention, in zigzag.

python benchmarks/context_parallel.py [--ranks 2] [--length 2048] [--heads 8] [--rounds 15]

Both run the same operator on the same tokens of each rank, and take turns. PyTorch's gathers the keys, its default, or
sends them around the ring (``alltoall``).

Prints the scores that each rank computes, contiguous and in zigzag, then the median ratio of their times beside its
target, and ends with exit code 1 where it is missed. Takes about 20 seconds on two idle cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import torch
import torch.distributed as dist
from paired import count, report, rounds
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor.experimental._context_parallel import _attention

from course_lib.context_parallel import tile
from course_lib.context_parallel.order import Order
from course_lib.context_parallel.ring import RingCore
from course_lib.runtime import launch

WARM_UP, SIZE, BATCH = 2, 64, 1
TARGET = 1.0
ROTATE = ("allgather", "alltoall")


def official(q: Tensor, k: Tensor, v: Tensor, dO: Tensor, group: ProcessGroup) -> tuple[Tensor, ...]:
    """The output and the gradients of queries, keys and values."""

    def forward(
        q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, **_: object
    ) -> tuple[Tensor, Tensor]:
        return tile.ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)

    def backward(
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        is_causal: bool,
        **_: object,
    ) -> tuple[Tensor, ...]:
        saved = query, key, value, out, logsumexp
        return tile.ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, *saved, 0.0, is_causal
        )

    O, L = _attention._templated_ring_attention(group, 2, forward, q, k, v, is_causal=True)
    given = "grad_out", q, k, v, O, L.contiguous()
    return O, *_attention._templated_ring_attention_backward(group, 2, backward, dO, *given, is_causal=True)


def measure(ranks: int, length: int, heads: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each side, one after the other in every round, until all ranks are done."""
    torch.set_num_threads(1)
    group, order = dist.group.WORLD, Order(ranks, causal=True, zigzag=True)
    g = torch.Generator().manual_seed(0)
    whole = [torch.randn(BATCH, heads, length, SIZE, generator=g) for _ in range(4)]
    *qkv, dO = (order.cut(x, group.rank(), 2) for x in whole)
    core = RingCore(order, group)

    def ours() -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in qkv]
        O = core(*leaves)
        return O.detach(), *torch.autograd.grad(O, leaves, dO)

    def theirs(rotate: str) -> tuple[Tensor, ...]:
        _attention.set_rotate_method(rotate)
        return official(*qkv, dO, group)

    sides: dict[str, Callable[[], tuple[Tensor, ...]]] = {"ours": ours}
    sides |= {rotate: lambda rotate=rotate: theirs(rotate) for rotate in ROTATE}
    for got, wanted in zip(ours(), theirs(ROTATE[0]), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(WARM_UP + rounds):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            dist.barrier()
            began = time.perf_counter()
            sides[name]()
            dist.barrier()
            if turn >= WARM_UP:
                times[name].append(time.perf_counter() - began)
    return times


@click.command(help=__doc__)
@count("--ranks", 2, "Processes; at least 2 of them make a ring.")
@count("--length", 2048, "Tokens of the text, on all ranks together: a multiple of 2 ranks.")
@count("--heads", 8, "Attention heads of 64 columns.")
@rounds(15)
def main(ranks: int, length: int, heads: int, rounds: int) -> None:
    if ranks < 2 or length % (2 * ranks):
        raise click.UsageError(
            f"2 ranks or more must share the text in 2 pieces each, not {ranks} ranks {length} tokens"
        )
    for name, zigzag in {"contiguous": False, "zigzag": True}.items():
        work = [Order(ranks, True, zigzag).scores(length, rank) for rank in range(ranks)]
        print(
            f"{name}: scores of a head {', '.join(f'{n:,}' for n in work)}; the most is "
            f"{max(work) * ranks / sum(work):.3f} of the mean"
        )
    times = launch(measure, ranks, args=(ranks, length, heads, rounds), timeout=None)[0]
    for rotate in ROTATE:
        what = f"ring attention in zigzag, ours / PyTorch's ({rotate})"
        report(what, times["ours"], times[rotate], at_most=TARGET)


if __name__ == "__main__":
    main()
