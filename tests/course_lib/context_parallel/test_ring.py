"""The ring's attention beside PyTorch's own ring, and one tile beside plain attention."""

from functools import cache

import pytest
import torch
import torch.distributed as dist

from course_lib.context_parallel import tile
from course_lib.context_parallel.order import Order
from course_lib.context_parallel.ring import RingCore
from course_lib.runtime import launch
from course_lib.runtime.mesh import make_mesh

_attention = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")
BATCH, HEADS, SEQ, SIZE = 2, 3, 24, 8


def torch_ring(q, k, v, dO, group, zigzag):
    """Output and gradients of PyTorch's ring, with the CPU's operator."""
    options = _attention._cp_options
    before = options.convert_to_f32, options.enable_load_balance
    options.convert_to_f32, options.enable_load_balance = False, zigzag

    def forward(q, k, v, is_causal=False, **_):
        return tile.ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal)

    def backward(grad_out, query, key, value, out, logsumexp, is_causal, **_):
        saved = query, key, value, out, logsumexp.contiguous()
        return tile.ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, *saved, 0.0, is_causal
        )

    try:
        O, L = _attention._templated_ring_attention(group, 2, forward, q, k, v, is_causal=True)
        L = L.contiguous()
        back = _attention._templated_ring_attention_backward(
            group, 2, backward, dO, "grad_out", q, k, v, O, L, is_causal=True
        )
    finally:
        options.convert_to_f32, options.enable_load_balance = before
    return O, *back


def inputs(dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(BATCH, HEADS, SEQ, SIZE, generator=g, dtype=dtype) for _ in range(4)]


def on_a_rank():
    group, found = make_mesh({"cp": dist.get_world_size()}).get_group(), {}
    for zigzag in (False, True):
        order = Order(group.size(), causal=True, zigzag=zigzag)
        q, k, v, dO = (order.cut(x, group.rank(), 2) for x in inputs())
        theirs = torch_ring(q, k, v, dO, group, zigzag)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        O = RingCore(order, group)(*leaves)
        O.backward(dO)
        ours = O.detach(), *(x.grad for x in leaves)
        found[zigzag] = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    return found


@cache
def on_ranks(ranks):
    return launch(on_a_rank, ranks)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("zigzag", [False, True])
def test_outputs_and_gradients_are_those_of_torchs_ring(zigzag, ranks):
    assert all(found[zigzag] < 1e-12 for found in on_ranks(ranks))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_in_zigzag_all_ranks_have_as_much_to_do(ranks):
    length = 4 * ranks
    whole = length * (length + 1) // 2
    zigzag, plain = (
        [Order(ranks, True, way).scores(length, rank) for rank in range(ranks)] for way in (True, False)
    )
    assert sum(zigzag) == sum(plain) == whole
    assert len(set(zigzag)) == 1
    assert plain == sorted(set(plain))


@pytest.mark.parametrize("operator", ["fused", "plain"])
@pytest.mark.parametrize("kv_heads", [HEADS, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_a_tile_is_a_part_of_attention(operator, kv_heads, masked, monkeypatch):
    if operator == "plain":
        monkeypatch.setattr(tile, "fused", lambda q, v: False)
    q, k, v, dO = inputs()
    k, v = k[:, :kv_heads], v[:, :kv_heads]
    mask = None
    if masked:  # whole rows of the first part are hidden
        mask = torch.zeros(BATCH, 1, SEQ, SEQ).masked_fill(torch.rand(BATCH, 1, SEQ, SEQ) < 0.5, -torch.inf)
        mask[:, :, 3:9, :16] = -torch.inf
        mask[:, :, :, 20] = 0
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    added = None if mask is None else mask.double()
    whole = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=added, enable_gqa=True)
    whole.backward(dO)

    O, L = torch.zeros_like(q), q.new_full(q.shape[:-1], -torch.inf)
    parts = [slice(0, 16), slice(16, SEQ)]
    seen = [None if mask is None else mask[..., part] for part in parts]
    for part, its in zip(parts, seen, strict=True):
        tile.merge(O, L, *tile.attend(q, k[:, :, part], v[:, :, part], False, its))
    torch.testing.assert_close(O, whole.detach(), rtol=0, atol=1e-12)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for part, its in zip(parts, seen, strict=True):
        more = tile.attend_backward(dO, q, O, L, k[:, :, part], v[:, :, part], False, its)
        dq += more[0]
        dk[:, :, part], dv[:, :, part] = more[1:]
    for ours, leaf in zip((dq, dk, dv), leaves, strict=True):
        torch.testing.assert_close(ours, leaf.grad, rtol=0, atol=1e-12)
