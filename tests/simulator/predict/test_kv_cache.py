"""Published cache sizes; the cache of a real model is compared in tests/course_lib/models/test_latent_attention.py."""

import pytest

from simulator.predict.kv_cache import kv_cache_bytes_per_token, latent_cache_bytes_per_token


def test_opt_13b_as_in_the_paged_attention_paper():
    assert (
        kv_cache_bytes_per_token(layers=40, kv_heads=40, head_size=128) == 819_200
    )  # arXiv:2309.06180: 800 KB


def test_deepseek_v2s_table_of_elements():
    """arXiv:2405.04434, table 7, in thousands of numbers: MHA against MLA in a small model, MLA in a large one."""
    small = {"layers": 27, "bytes_per_number": 1}
    assert round(kv_cache_bytes_per_token(kv_heads=16, head_size=128, **small) / 1000, 1) == 110.6
    assert round(latent_cache_bytes_per_token(latent=512, rope_size=64, **small) / 1000, 1) == 15.6
    large = latent_cache_bytes_per_token(layers=60, latent=512, rope_size=64, bytes_per_number=1)
    assert round(large / 1000, 1) == 34.6


def test_the_ways_of_sharing_heads():
    heads = [kv_cache_bytes_per_token(layers=80, kv_heads=n, head_size=128) for n in (64, 8, 1)]
    assert heads == [2_621_440, 327_680, 40_960]
    with pytest.raises(ValueError, match="kv heads must be a whole number of at least 1, not 0"):
        kv_cache_bytes_per_token(layers=1, kv_heads=0, head_size=64)
