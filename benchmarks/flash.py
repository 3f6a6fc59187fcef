"""FlashAttention's Triton kernels beside the flash backend of ``scaled_dot_product_attention``, and standard attention.

python benchmarks/flash.py [--lengths 1024,4096,16384] [--rounds 15]

In bf16, forward and backward, with 16,384 tokens and 2,048 columns of all heads whatever the length. The sides take
turns; ``paired`` judges lengths from 4,096 on. Without a GPU a tiny case runs under Triton's interpreter: it shows that
the script works, and judges nothing.

Prints a table of throughput and memory, then the ratios of throughput, and ends with exit code 1 where one misses its
target. Takes about five seconds without a GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import click
import torch
import torch.nn.functional as F
from paired import count, list_of, report, rounds
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from course_lib.attention.flash_triton import flash_attention_triton
from simulator.predict.attention_io import attention_flops

WARM_UP = 3
JUDGED_FROM = 4096  # shorter ones are printed, too
TARGETS = {"forward": 0.85, "backward": 0.70}  # of the official throughput
OURS, OFFICIAL, STANDARD = "ours", "SDPA flash", "standard"

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def standard(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """The whole scores, one operator after the other."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1) @ v


def official(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def seconds(work: Callable[[], object], device: str) -> float:
    """Of one call; on a GPU between two events, so that the time to start the kernels is hidden as in training."""
    if device == "cpu":
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    work()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def extra_bytes(attention: Attention, inputs: tuple[Tensor, ...], dO: Tensor) -> int | None:
    """The most that forward and backward hold beside what was there before; None: no GPU counts it."""
    if dO.device.type == "cpu":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(attention(*inputs), inputs, dO)
    return torch.cuda.max_memory_allocated() - before


def compare(
    length: int, size: int, causal: bool, device: str, tokens: int, hidden: int, rounds: int
) -> tuple[dict[str, dict[str, list[float]]], dict[str, int | None]]:
    """Seconds by side, then by forward and backward, one after the other in every round; and the extra bytes by side.

    A side that does not fit into the device's memory is left out.
    """
    batch, heads = max(1, tokens // length), max(1, hidden // size)
    torch.manual_seed(0)
    q, k, v, dO = (
        torch.randn(batch, length, heads, size, device=device, dtype=torch.bfloat16).transpose(1, 2)
        for _ in range(4)
    )
    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    sides: dict[str, Attention] = {
        OURS: partial(flash_attention_triton, causal=causal),
        OFFICIAL: partial(official, causal=causal),
        STANDARD: partial(standard, causal=causal),
    }
    outputs, memory, work = {}, {}, {}
    for name, attention in list(sides.items()):
        try:
            memory[name] = extra_bytes(attention, inputs, dO)
            outputs[name] = attention(*inputs)
        except torch.OutOfMemoryError:
            del sides[name]
            torch.cuda.empty_cache()
            continue
        work[name] = {
            "forward": partial(attention, *(x.detach() for x in inputs)),
            "backward": partial(torch.autograd.grad, outputs[name], inputs, dO, retain_graph=True),
        }
    got, wanted = outputs[OURS].float(), outputs[OFFICIAL].float()
    if (got - wanted).norm() > 2e-2 * wanted.norm():
        raise SystemExit(f"length {length}, size {size}, causal {causal}: the outputs differ from SDPA's")
    times: dict[str, dict[str, list[float]]] = {name: {"forward": [], "backward": []} for name in sides}
    for turn in range(WARM_UP + rounds if device != "cpu" else rounds):
        order = list(sides) if turn % 2 else list(sides)[::-1]
        for which in ("forward", "backward"):
            for name in order:
                took = seconds(work[name][which], device)
                if turn >= WARM_UP or device == "cpu":
                    times[name][which].append(took)
    return times, memory


def row(times: dict[str, list[float]], held: int | None, flops: dict[str, int]) -> list[str]:
    """TFLOP/s of forward and backward, and the extra memory, as text."""
    rates = [f"{flops[which] / statistics.median(times[which]) / 1e12:,.3g}" for which in flops]
    return [*rates, "not counted" if held is None else f"{held / 1e9:.2f} GB"]


@click.command(help=__doc__)
@click.option(
    "--lengths",
    type=list_of(int),
    default="1024,2048,4096,8192,16384",
    show_default=True,
    help="Tokens of a sequence.",
)
@click.option("--sizes", type=list_of(int), default="64,128", show_default=True, help="Of a head.")
@count("--tokens", 16384, "Batch times length.")
@count("--hidden", 2048, "Heads times their size.")
@rounds(15)
def main(lengths: list[int], sizes: list[int], tokens: int, hidden: int, rounds: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        print("No GPU: a tiny case under Triton's interpreter, whose times say nothing.")
        lengths, sizes, tokens, hidden, rounds = [72], [64], 72, 64, 1
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16")
    table = Table("length", "head", "causal", "side", "forward TFLOP/s", "backward TFLOP/s", "extra memory")
    judged = []
    for size in sizes:
        for causal in (False, True):
            for length in lengths:
                times, memory = compare(length, size, causal, device, tokens, hidden, rounds)
                heads = max(1, tokens // length) * max(1, hidden // size)
                flops = attention_flops(length, size, heads=heads, causal=causal)
                for name in (OURS, OFFICIAL, STANDARD):
                    cells = row(times[name], memory[name], flops) if name in times else ["out of memory"]
                    table.add_row(str(length), str(size), "yes" if causal else "no", name, *cells)
                judged.append(
                    (f"length {length}, head {size}, {'causal' if causal else 'full'}", length, times)
                )
    Console(width=120).print(table)
    for what, length, times in judged:
        for which, target in TARGETS.items():
            bound = target if length >= JUDGED_FROM and device != "cpu" else None
            # Throughput is work over time, so the ratio of throughputs is the inverse of that of the times.
            report(
                f"{which}, {what}: throughput of ours / SDPA flash",
                times[OFFICIAL][which],
                times[OURS][which],
                at_least=bound,
            )


if __name__ == "__main__":
    main()
