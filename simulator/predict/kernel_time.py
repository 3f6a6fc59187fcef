"""How long one kernel takes: a roofline of the device's arithmetic and its memory."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil, log

from simulator.inputs.checks import at_least, not_negative, positive
from simulator.inputs.hardware import Hardware, Sizes

# Output tiles a matrix product is cut into, and how near each comes to the best rate: small tiles reread more.
TILES = {(256, 128): 1.0, (128, 256): 1.0, (128, 128): 0.93, (64, 128): 0.75, (128, 64): 0.75}
# Query rows of one tile of fused attention (arXiv:2307.08691, section 3.3).
FLASH_ROWS = 128
# Bytes a second of one device's link to the host's memory.
HOST_LINK = 25e9


def matmul_seconds(
    m: int, n: int, k: int, hardware: Hardware, itemsize: int = 2, batch: int = 1, *, fp8: bool = False
) -> float:
    """``batch`` products (m, k) @ (k, n): tiles in waves over the processors, or the memory, if that is slower.

    A tile takes 2 x its area x (k + ``hardware.tile_start``) operations' time: filling and draining it costs as
    much as that many more columns. The last wave is as long as the others, however few tiles it has. No product
    runs faster than power lets the device run for long: ``hardware.sustained`` of the peak. Where the file of a
    device has measured points, they take the place of the tiles.
    """
    at_least(1, m=m, n=n, k=k, itemsize=itemsize, batch=batch)
    compute = max(_compute_seconds(m, n, k, hardware, itemsize, batch, fp8, start=hardware.tile_start))
    moved = itemsize * batch * (m * k + k * n + m * n)
    return hardware.launch + max(compute, memory_seconds(moved, hardware))


def grouped_seconds(
    m: int,
    n: int,
    k: int,
    hardware: Hardware,
    itemsize: int = 2,
    groups: int = 1,
    *,
    fp8: bool = False,
    gradient: float = 0,
) -> float:
    """A product (m, k) @ (k, n) for each of ``groups`` experts: one kernel behind another, each with a last wave of its
    own, but launched while the one before it runs.

    Args:
        gradient: bytes that are moved for each number of the result where it is a weight's gradient. Then k is the few
            tokens of an expert, and a tile's products are too short to hide them.
    """
    at_least(1, m=m, n=n, k=k, itemsize=itemsize, groups=groups)
    not_negative(gradient=gradient)
    if gradient and groups > 1:
        tiles, sustained = _compute_seconds(m, n, k, hardware, itemsize, 1, fp8, start=0)
        one = max(tiles + memory_seconds(gradient * m * n, hardware), sustained)
    else:
        one = matmul_seconds(m, n, k, hardware, itemsize, fp8=fp8) - hardware.launch
    return hardware.launch + groups * one


def _compute_seconds(
    m: int, n: int, k: int, hardware: Hardware, itemsize: int, batch: int, fp8: bool, start: int
) -> tuple[float, float]:
    """Of its arithmetic: as its tiles need, and as power allows."""
    if fp8 and not hardware.fp8_flops:
        raise ValueError(f"{hardware.name} has no 8-bit arithmetic: fp8 must be False there")
    peak = hardware.fp8_flops if fp8 else hardware.peak_flops * (2 / max(itemsize, 2))
    flops = 2.0 * batch * m * n * k
    if hardware.matmul_sizes:
        return flops / (peak * at_size(hardware.matmul_sizes, flops / batch)), 0.0
    waves = (
        ceil(batch * ceil(m / rows) * ceil(n / columns) / hardware.units) * rows * columns / quality
        for (rows, columns), quality in TILES.items()
    )
    reach = hardware.units * (k + start) / hardware.matmul_efficiency
    return 2 * min(waves) * reach / peak, flops / (
        hardware.sustained_fp8 if fp8 else hardware.sustained
    ) / peak


def memory_seconds(size: float, hardware: Hardware) -> float:
    """An elementwise kernel that reads and writes ``size`` bytes in all."""
    not_negative(size=size)
    efficiency = hardware.memory_efficiency
    if hardware.memory_sizes and size > 0:
        efficiency = at_size(hardware.memory_sizes, size)
    return size / (hardware.memory_bandwidth * efficiency)


def flash_seconds(heads: int, rows: int, columns: int, width: int, hardware: Hardware) -> tuple[float, float]:
    """FlashAttention of ``heads`` heads, ``rows`` queries and ``columns`` keys each: (forward, backward).

    A causal mask lets it skip half of the tiles. Forward ends when the last tile ends, and the longest one meets
    all keys; backward, of 5 products for forward's 2, divides its work more finely (arXiv:2307.08691).
    """
    at_least(1, heads=heads, rows=rows, columns=columns, width=width)
    square = 4.0 * heads * rows * columns * width / 2
    longest = 4.0 * min(FLASH_ROWS, rows) * columns * width * hardware.units
    forward = (square + longest) / (hardware.peak_flops * hardware.flash_forward)
    backward = 2.5 * square / (hardware.peak_flops * hardware.flash_backward)
    return hardware.launch + forward, hardware.launch + backward


def at_size(points: Sizes, size: float) -> float:
    """The part of the peak reached at ``size``, between measured points over the logarithm of the size."""
    positive(size=size)
    after = bisect_left(points, (size, 0.0))
    if after in (0, len(points)):
        return points[min(after, len(points) - 1)][1]
    (low, part), (high, next_part) = points[after - 1 : after + 1]
    return part + (next_part - part) * log(size / low) / log(high / low)
