"""Bytes that a cache of keys and values holds for each token, in all layers together."""

from __future__ import annotations

from simulator.inputs.checks import at_least


def kv_cache_bytes_per_token(layers: int, kv_heads: int, head_size: int, bytes_per_number: int = 2) -> int:
    """2 · layers · kv heads · head size · bytes: one key and one value for each head of keys and values.

    Multi-head attention has as many of these heads as of queries, multi-query attention one (arXiv:1911.02150), and
    grouped-query attention (arXiv:2305.13245) a number between them. OPT-13B in 16 bits: 819,200 (arXiv:2309.06180).
    """
    at_least(1, layers=layers, kv_heads=kv_heads, head_size=head_size, bytes_per_number=bytes_per_number)
    return 2 * layers * kv_heads * head_size * bytes_per_number


def latent_cache_bytes_per_token(layers: int, latent: int, rope_size: int, bytes_per_number: int = 2) -> int:
    """layers · (latent + rope size) · bytes: one latent for all heads' keys and values, and one rotated key.

    Multi-head latent attention (arXiv:2405.04434, table 1). DeepSeek-V2 keeps 34.6 thousand numbers a token.
    """
    at_least(1, layers=layers, latent=latent, rope_size=rope_size, bytes_per_number=bytes_per_number)
    return layers * (latent + rope_size) * bytes_per_number
