"""How long one kernel takes: a roofline of the device's arithmetic and its memory."""

from __future__ import annotations

from math import ceil

from simulator.inputs.hardware import Hardware

# Output tiles a matrix product is cut into, and how near each comes to the best rate: small tiles reread more.
TILES = {(256, 128): 1.0, (128, 256): 1.0, (128, 128): 0.93, (64, 128): 0.75, (128, 64): 0.75}


# FlashAttention's part of a matrix product's rate: exponentials run between the products (arXiv:2307.08691).
FLASH_RATE = 0.55


def matmul_seconds(m: int, n: int, k: int, hardware: Hardware, itemsize: int = 2, batch: int = 1) -> float:
    """``batch`` products (m, k) @ (k, n): tiles in waves over the processors, or the memory, if that is slower.

    A tile takes 2 x its area x (k + ``hardware.tile_start``) operations' time: filling and draining it costs as
    much as that many more columns. The last wave is as long as the others, however few tiles it has.
    """
    rate = hardware.peak_flops * hardware.matmul_efficiency * (2 / max(itemsize, 2))
    waves = (
        ceil(batch * ceil(m / rows) * ceil(n / columns) / hardware.units) * rows * columns / quality
        for (rows, columns), quality in TILES.items()
    )
    compute = 2 * min(waves) * hardware.units * (k + hardware.tile_start) / rate
    moved = itemsize * batch * (m * k + k * n + m * n)
    return hardware.launch + max(compute, memory_seconds(moved, hardware))


def memory_seconds(size: float, hardware: Hardware) -> float:
    """An elementwise kernel that reads and writes ``size`` bytes in all."""
    return size / (hardware.memory_bandwidth * hardware.memory_efficiency)


def flash_seconds(flops: float, hardware: Hardware) -> float:
    """FlashAttention of ``flops`` over the whole square; a causal mask lets it skip half of the tiles."""
    return flops / 2 / (hardware.peak_flops * hardware.matmul_efficiency * FLASH_RATE)
