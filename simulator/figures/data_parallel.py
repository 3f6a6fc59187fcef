"""What data parallelism does in a step (chapters 04, 05 and 07)."""

from __future__ import annotations

from simulator.figures.figure import Figure, Slider
from simulator.inputs.shape import MODELS

BOTH = [False, True]
TENSOR = 12e6  # bytes that the ring adds up


def explore_ring(ranks: int = 4) -> Figure:
    """The ring all-reduce of 12 MB, round by round: which chunk moves, whose addends it has, what each rank has sent.

    Rank r ends the reduce-scatter with chunk r, as in ``course_lib.runtime.collectives``.

    Args:
        ranks: 2 to 8.
    """
    return Figure(
        "ring", "Ring all-reduce", [Slider("ranks", ranks, range(2, 9), "ranks")], shown=2, bytes=TENSOR
    )


def explore_block_life(prefetch: bool = True, reshard_after_forward: bool = True, ranks: int = 4) -> Figure:
    """One step of FSDP, moment by moment: four blocks of Llama 2 70B in bf16, on one of the ranks that shard them.

    At each moment: which block is a shard, being gathered, whole or computing; what the rank holds, and what it has
    sent. The bytes are those of ``unsharded_history``, with the gradients of backward.

    Args:
        prefetch: gather the next block while this one computes.
        reshard_after_forward: free a block after its forward, and gather it again for its backward.
        ranks: that share the blocks, 2 to 8.
    """
    block = 2 * MODELS["llama-2-70b"].layer_parameters()
    sliders = [
        Slider("prefetch", prefetch, BOTH, "prefetch the next block"),
        Slider("reshard_after_forward", reshard_after_forward, BOTH, "reshard_after_forward"),
        Slider("ranks", ranks, range(2, 9), "ranks"),
    ]
    return Figure("block_life", "A step of FSDP on one rank", sliders, shown=7, bytes=block)
