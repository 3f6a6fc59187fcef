"""Small live figures for the chapters: each shows one thing, step by step or over a slider, and computes in the page.

A call as the last line of a cell shows the figure; ``.save("ring.html")`` writes it as one file.

=========================  =======  ==================================================================================
``explore_ring``           04       ``(ranks=4)``: the ring all-reduce, round by round
``explore_buckets``        05       ``(bucket_bytes=25e6, bandwidth=1.25e9)``: DDP's buckets beside backward
``explore_block_life``     07       ``(prefetch=True, reshard_after_forward=True, ranks=4)``: a step of FSDP on one rank
``explore_unequal``        13       ``(slowness=3, bandwidth=9.75e7, heads=None)``: a layer of BERT on two devices
``explore_tiles``          15       ``(block_q=4, block_k=2)``: FlashAttention's forward, tile by tile
``explore_kv_blocks``      16       ``(block_size=4, share=False)``: blocks of a KV cache, handed out and given back
``explore_rank``           17       ``(r=4, alpha=16)``: LoRA's change as B times A, and how many numbers are trained
``explore_interval``       20       ``(failures=8, cost=60, restart=900, interval=7200)``: how often to save
=========================  =======  ==================================================================================

After you have written a call with other values into a notebook, ``python -m simulator.figures.stills`` draws the still
picture that stands there for readers without a kernel.
"""

from simulator.figures.attention import explore_kv_blocks, explore_tiles
from simulator.figures.data_parallel import explore_block_life, explore_buckets, explore_ring
from simulator.figures.elastic import explore_interval
from simulator.figures.figure import Figure
from simulator.figures.finetuning import explore_rank
from simulator.figures.galaxy import explore_unequal

__all__ = [
    "Figure",
    "explore_block_life",
    "explore_buckets",
    "explore_interval",
    "explore_kv_blocks",
    "explore_rank",
    "explore_ring",
    "explore_tiles",
    "explore_unequal",
]
