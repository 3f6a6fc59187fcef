"""FlashAttention in PyTorch, against attention in float64 and against ``scaled_dot_product_attention``."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.flop_counter import FlopCounterMode

from course_lib.attention.drop_in import FlashCore
from course_lib.attention.flash import flash_attention
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.one_device.recompute import checkpoint

# heads, kv_heads, rows, keys, causal, keys that are padding, block_q, block_k
CASES = [
    (2, 2, 32, 32, False, 0, 16, 16),
    (2, 2, 37, 37, True, 0, 16, 8),  # no tile divides the length
    (4, 2, 21, 21, True, 5, 8, 16),  # grouped queries, padding; a block crosses the diagonal and the end
    (4, 1, 9, 30, True, 0, 4, 7),  # multi-query; a cache of earlier keys
    (3, 3, 12, 7, True, 0, 5, 4),  # the first five queries see no key
    (2, 1, 1, 1, True, 0, 128, 128),  # one token
    (2, 2, 10, 20, False, 20, 4, 4),  # the first sequence is nothing but padding
    (2, 2, 8, 19, False, 11, 128, 3),  # blocks of padding alone, and one with both
]


def inputs(case, dtype=torch.float64, size=8, batch=2):
    heads, kv_heads, rows, keys, _, padding, _, _ = case
    generator = torch.Generator().manual_seed(rows * keys)
    shapes = (heads, rows), (kv_heads, keys), (kv_heads, keys)
    q, k, v = (
        torch.randn(batch, *shape, size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    )
    mask = torch.ones(batch, keys, dtype=torch.bool)
    mask[0, keys - padding :] = False  # only the first sequence is shorter
    return q, k, v, mask[:, None, None, :] if padding else None


def whole_mask(q, k, causal, mask):
    """``(batch, 1, rows, keys)``: the last query beside the last key."""
    rows, keys = q.shape[2], k.shape[2]
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if causal:
        seen = seen.tril(keys - rows)
    return seen[None, None] if mask is None else seen & mask


def reference(q, k, v, causal=False, mask=None, dropout_mask=1.0):
    """Attention in float64 with the whole scores: the output and the logsumexp."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~whole_mask(q, k, causal, mask), -torch.inf)
    hidden = scores.isneginf().all(-1, keepdim=True)
    weights = torch.where(hidden, 0, scores.masked_fill(hidden, 0).softmax(-1))
    return (weights * dropout_mask) @ v, scores.logsumexp(-1)


def gradients(output, wanted, *tensors):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
    return torch.autograd.grad((output * weight).sum(), tensors, retain_graph=wanted)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_attention_in_float64_and_sdpa(case):
    q, k, v, mask = inputs(case)
    *_, causal, _, block_q, block_k = case
    O, L = flash_attention(
        q, k, v, mask, causal=causal, block_q=block_q, block_k=block_k, return_logsumexp=True
    )
    wanted, wanted_L = reference(q, k, v, causal, mask)
    close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
    close(O, wanted)
    close(L, wanted_L)
    seen = whole_mask(q, k, causal, mask)
    sdpa = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    close(O, sdpa)
    got, exact, official = (gradients(o, True, q, k, v) for o in (O, wanted, sdpa))
    for mine, a, b in zip(got, exact, official, strict=True):
        close(mine, a)
        close(mine, b)
    for mine, again in zip(got, gradients(O, False, q, k, v), strict=True):
        assert torch.equal(mine, again), "a second backward through the same forward"


def test_a_tile_of_any_size_and_an_own_scale():
    q, k, v, _ = inputs((2, 2, 13, 13, True, 0, 0, 0))
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    anything = torch.rand(2, 2, 13, 13) < 0.5  # a mask of its own for every head
    anything[..., 0] = True
    torch.testing.assert_close(
        flash_attention(q, k, v, anything, block_q=4, block_k=5),
        F.scaled_dot_product_attention(q, k, v, attn_mask=anything),
        rtol=1e-10,
        atol=1e-10,
    )
    for block_q, block_k in ((1, 1), (3, 5), (13, 1), (1000, 4)):
        O = flash_attention(q, k, v, causal=True, scale=0.3, block_q=block_q, block_k=block_k)
        torch.testing.assert_close(O, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_inputs_are_added_up_in_fp32(dtype):
    case = (4, 2, 300, 300, True, 40, 64, 64)
    q, k, v, mask = inputs(case, dtype, size=64)
    O, L = flash_attention(q, k, v, mask, causal=True, return_logsumexp=True)
    assert (O.dtype, L.dtype) == (dtype, torch.float32)
    wanted, _ = reference(q, k, v, True, mask)
    bound = 2e-2 if dtype == torch.bfloat16 else 1e-5
    pairs = zip((O, *gradients(O, False, q, k, v)), (wanted, *gradients(wanted, False, q, k, v)), strict=True)
    for got, exact in pairs:
        assert (got.double() - exact.double()).norm() < bound * exact.double().norm()
    with torch.autocast(
        "cpu", torch.bfloat16
    ):  # q, k and v are what they are; nothing inside becomes narrower
        assert torch.equal(flash_attention(q, k, v, mask, causal=True), O)


def test_gradients_of_the_output_and_of_the_logsumexp():
    q, k, v, mask = inputs((2, 1, 5, 6, True, 1, 0, 0), size=3)
    attention = partial(flash_attention, mask=mask, causal=True, block_q=2, block_k=4, return_logsumexp=True)
    assert torch.autograd.gradcheck(attention, (q, k, v))


def test_backward_drops_the_weights_that_forward_dropped():
    """Values that are the identity show the weights; from them the whole mask is read."""
    q, k, _, _ = inputs((2, 2, 12, 8, False, 0, 0, 0))
    v = torch.randn(2, 2, 8, 8, dtype=torch.float64, requires_grad=True)
    attention = partial(flash_attention, dropout_p=0.4, block_q=5, block_k=3)
    torch.manual_seed(7)
    weights = attention(q, k, torch.eye(8, dtype=torch.float64).expand(2, 2, 8, 8))
    dropout_mask = (weights != 0).double() / 0.6
    assert 0.2 < (weights == 0).double().mean() < 0.6
    torch.manual_seed(7)
    O = attention(q, k, v)
    torch.rand(3)  # what was drawn in between does not matter
    wanted, _ = reference(q, k, v, dropout_mask=dropout_mask)
    torch.testing.assert_close(O, wanted, rtol=1e-10, atol=1e-10)
    state = torch.get_rng_state()
    got = gradients(O, True, q, k, v)
    assert torch.equal(torch.get_rng_state(), state), "backward draws from a generator of its own"
    for a, b in zip(got, gradients(wanted, False, q, k, v), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)

    def twice(q, k, v):
        return attention(attention(q, k, v), k, v)

    results = []
    ways = (lambda f, *x: f(*x), checkpoint, partial(torch_checkpoint, use_reentrant=False))
    for way in (*ways, partial(torch_checkpoint, use_reentrant=True)):
        torch.manual_seed(7)
        q.grad = k.grad = v.grad = None
        way(twice, q, k, v).square().sum().backward()
        results.append([q.grad, k.grad, v.grad])
    for others in results[1:]:
        assert all(map(torch.equal, results[0], others)), "recomputation drops the same weights"


class Largest(TorchDispatchMode):
    """The most elements of a tensor that an operator made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def test_memory_is_linear_in_the_length():
    heads, size, saved, largest = 2, 16, [], []
    lengths = (32, 64, 128)
    for length in lengths:
        q, k, v = (torch.randn(1, heads, length, size, requires_grad=True) for _ in range(3))
        saved.append(sum(t.bytes for t in saved_tensors(FlashCore(causal=True), q, k, v)))
        assert saved[-1] == 4 * heads * length * (4 * size + 1)  # q, k, v and O, and one number for each row
        with Largest() as made:
            flash_attention(q, k, v, causal=True, block_q=16, block_k=16).sum().backward()
        largest.append(made.elements)
    assert saved == [saved[0], 2 * saved[0], 4 * saved[0]]
    assert largest == [heads * n * size for n in lengths], "as large as q, and never n x n"
    with sdpa_kernel(SDPBackend.MATH):
        whole = saved_tensors(FlashCore(True, attention=lambda *x, **_: sdpa(*x[:3])), q, k, v)
    assert sum(t.bytes for t in whole) > 4 * heads * 128 * 128 + saved[-1] / 2


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_tiles_above_the_diagonal_are_not_computed():
    q, k, v = (torch.empty(1, 1, 256, 16, device="meta", requires_grad=True) for _ in range(3))
    counts = {}
    for causal in (False, True):
        with FlopCounterMode(display=False) as counter:
            flash_attention(q, k, v, causal=causal, dropout_p=0.1, block_q=64, block_k=32).sum().backward()
        counts[causal] = counter.get_total_flops()
    product = 2 * 64 * 32 * 16  # FLOPs of one matrix product of one tile
    assert counts == {False: 7 * 4 * 8 * product, True: 7 * (2 + 4 + 6 + 8) * product}


def test_bad_input_gets_one_sentence():
    q = torch.randn(2, 4, 6, 8)
    for change, words in (
        ({"q": torch.randn(4, 6, 8)}, "q must be (batch, heads, length, size), not of shape (4, 6, 8)."),
        ({"k": q[:, :, :0], "v": q[:, :, :0]}, "k must have at least one of each, but its shape is (2, 4, 0, 8)."),
        ({"q": q[:, :, :0]}, "q must have at least one of each, but its shape is (2, 4, 0, 8)."),
        ({"q": q.int()}, "q must be of floating point, not torch.int32."),
        ({"v": q[..., :4]}, "k and v must have one shape, not (2, 4, 6, 8) and (2, 4, 6, 4)."),
        ({"q": q[..., :4]}, "q and k must agree in batch and head size, not have (2, 4, 6, 4) and (2, 4, 6, 8)."),
        ({"k": q[:, :3], "v": q[:, :3]}, "4 query heads cannot share 3 heads of keys and values; the second number"),
        ({"q": q.double()}, "q, k and v must be of one dtype and on one device, not torch.float64 on cpu, torch.float"),
        ({"mask": torch.ones(6, 6)}, "mask must be boolean, true where a query may look at a key, not torch.float32."),
        ({"mask": torch.ones(2, 6).bool()}, "mask must broadcast to (batch, heads, rows, keys) = (2, 4, 6, 6), and"),
        ({"dropout_p": 1.0}, "dropout_p is 1.0; it is a probability, from 0 to below 1."),
        ({"block_k": 0}, "block_k is 0; a tile needs a whole number of rows or keys, at least 1."),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            flash_attention(**({"q": q, "k": q, "v": q} | change))
        assert str(error.value).startswith(words)
        assert "\n" not in str(error.value)
