"""What the rungs of ``course_lib/by_hand/compress.py`` send: each parameter by itself, as the simulator predicts it."""

from __future__ import annotations

from torch import nn

from simulator.ledgers.traffic import Traffic
from simulator.predict.compression_traffic import (
    averaging_traffic,
    bytegrad_traffic,
    power_sgd_traffic,
    top_k_traffic,
)


def compressed(rung: str, model: nn.Module, ranks: int) -> Traffic:
    """In a step; under DiLoCo in one after which the ranks meet."""
    shapes = [tuple(p.shape) for p in model.parameters()]
    sizes = [p.numel() for p in model.parameters()]
    match rung:
        case "8 bits":
            return bytegrad_traffic(sizes, ranks)
        case "top-k":
            return top_k_traffic(sizes, ranks, density=0.01)
        case "PowerSGD":
            buckets = [[shape] for shape in shapes]
            return power_sgd_traffic(buckets, ranks, matrix_rank=4, min_compression=1)
    return sum((averaging_traffic([size], ranks, every=1, steps=1) for size in sizes), Traffic())
