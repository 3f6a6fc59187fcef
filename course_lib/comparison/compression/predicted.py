"""The bytes that rank 0 sends in a whole run, by the simulator's closed forms.

Where the ranks do not divide an all-reduce, they are the mean over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from course_lib.comparison.compression.methods import EVERY, MATRIX_RANK, RANDOM, TOP, warmup_of
from simulator.inputs.mixing import pair_matrix, ring_matrix
from simulator.predict.compression_traffic import (
    averaging_traffic,
    bytegrad_traffic,
    decentralised_traffic,
    low_precision_decentralised_traffic,
    one_bit_traffic,
    power_sgd_traffic,
    random_k_traffic,
    top_k_traffic,
)
from simulator.predict.traffic import ddp_traffic


def sent_in_run(
    method: str, shapes: Sequence[Sequence[int]], fragments: Sequence[int], ranks: int, steps: int
) -> float | None:
    """Bytes that rank 0 sends in ``steps`` steps; None for asynchronous averaging, which depends on the timing.

    Args:
        method: one of ``METHODS``.
        shapes: of the parameters, all in one bucket.
        fragments: elements of each fragment of Streaming DiLoCo.
    """
    n = sum(map(prod, shapes))
    plain = ddp_traffic([n], ranks).sent
    match method:
        case "none":
            return steps * plain
        case "bytegrad":
            return steps * bytegrad_traffic([n], ranks).sent
        case "one-bit-adam" | "q-adam":
            one = one_bit_traffic if method == "one-bit-adam" else bytegrad_traffic
            warm = min(steps, warmup_of(steps))
            return warm * plain + (steps - warm) * one([n], ranks).sent
        case "top-k":
            return steps * top_k_traffic([n], ranks, TOP).sent
        case "random-k":
            return steps * random_k_traffic([n], ranks, RANDOM).sent
        case "powersgd":
            return steps * power_sgd_traffic([shapes], ranks, MATRIX_RANK).sent
        case "ring":
            return steps * decentralised_traffic([n], ring_matrix(ranks), rank=0).sent
        case "pairs":
            return sum(decentralised_traffic([n], pair_matrix(ranks, k), rank=0).sent for k in range(steps))
        case "ring-8-bits":
            return steps * low_precision_decentralised_traffic([n], ring_matrix(ranks), rank=0).sent
        case "local-sgd" | "diloco":
            return averaging_traffic([n], ranks, EVERY, steps).sent
        case "streaming-diloco":
            return averaging_traffic(fragments, ranks, EVERY, steps).sent
    return None
