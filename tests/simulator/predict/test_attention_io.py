"""Bytes that attention moves: the paper's figure 2, its Theta, and the blocks that a fast memory has room for."""

from itertools import product

import pytest

from simulator.predict.attention_io import (
    attention_flops,
    best_blocks,
    flash_backward,
    flash_fast_bytes,
    flash_forward,
    paper_blocks,
    standard_backward,
    standard_forward,
    total_bytes,
)

# arXiv:2205.14135, figure 2: forward and backward, length 1024, heads of size 64, 16 heads, batch 64, fp16, A100
FIGURE_2 = {"length": 1024, "size": 64, "heads": 16 * 64}
STANDARD_GB, FLASH_GB = 40.3, 4.4
SRAM = 192 * 1024  # bytes of one streaming multiprocessor of an A100 (section 2.1)


def test_the_papers_figure_2():
    """With its reference's operators: scale inside the product, a mask that is added, softmax, dropout."""
    standard = total_bytes(
        standard_forward(**FIGURE_2, masked=True, dropout=True), standard_backward(**FIGURE_2, dropout=True)
    )
    block_q, block_k = paper_blocks(64, SRAM // 2)  # algorithm 1's, for numbers of 2 bytes
    assert (block_q, block_k) == (64, 384)
    blocks = {"block_q": block_q, "block_k": block_k, "version": 1}
    flash = total_bytes(flash_forward(**FIGURE_2, **blocks), flash_backward(**FIGURE_2, **blocks))
    assert standard / 1e9 == pytest.approx(STANDARD_GB, rel=0.01)
    assert flash / 1e9 == pytest.approx(FLASH_GB, rel=0.02)
    assert standard / flash == pytest.approx(STANDARD_GB / FLASH_GB, rel=0.02)


def test_moved_numbers_are_theta_of_n2_d2_over_m():
    """12 N^2 d^2 / M: for each of N / B_c = 4 N d / M blocks of keys, Q and O are read and O is written."""
    for length, size, fast in product((4096, 16384), (32, 64, 128), (2**15, 2**17, 2**19)):
        block_q, block_k = paper_blocks(size, fast)
        if block_k > length // 4:
            continue  # so few blocks that reading K and V once is most of it
        moved = total_bytes(flash_forward(length, size, block_q, block_k, version=1)) / 2
        assert moved * fast / (length * size) ** 2 == pytest.approx(12, rel=0.15 + 6 * block_k / length)
    one, double = (total_bytes(flash_forward(2**16, 64, 64, keys, version=1)) for keys in (128, 256))
    assert one / double == pytest.approx(2, rel=0.01)


def test_a_causal_mask_halves_what_the_inner_loop_loads():
    full, causal = (flash_forward(8192, 64, 128, 64, causal=causal) for causal in (False, True))
    assert causal["K"].read / full["K"].read == pytest.approx(0.5, abs=0.01)
    assert (causal["Q"], causal["O"]) == (full["Q"], full["O"])
    work = attention_flops(8192, 64, causal=True)["forward"] / attention_flops(8192, 64)["forward"]
    assert work == pytest.approx(0.5, abs=0.001)


@pytest.mark.parametrize(("length", "size", "fast"), [(300, 32, 20_000), (256, 64, 60_000), (64, 16, 10**6)])
def test_the_best_blocks_are_those_of_all_that_fit(length, size, fast):
    sides = range(16, length + 16, 16)
    fitting = [b for b in product(sides, sides) if flash_fast_bytes(*b, size) <= fast]
    cost = {b: total_bytes(flash_forward(length, size, *b)) for b in fitting}
    best = best_blocks(length, size, fast)
    assert best in fitting
    assert cost[best] == min(cost.values())


def test_too_little_fast_memory_is_refused_in_one_sentence():
    least = flash_fast_bytes(16, 16, 64)
    assert best_blocks(512, 64, least) == (16, 16)
    with pytest.raises(
        ValueError, match=f"^fast bytes must be at least {least} for one tile, not {least - 1}$"
    ):
        best_blocks(512, 64, least - 1)
    with pytest.raises(ValueError, match=r"^version must be one of 1, 2, not 3$"):
        flash_forward(16, 8, 4, 4, version=3)
