"""The merge rule: attention over blocks of keys, in any cut and any order, is attention over all of them."""

from functools import reduce
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.attention.online_softmax import attend, merge, merge_all, no_keys

INF = torch.inf


def reference(scores, v):
    """In float64, and 0 for a row without keys."""
    weights = scores.double().softmax(-1).nan_to_num(0)
    return weights @ v.double()


def close(first, second, tolerance=1e-12):
    for a, b in ((first.output(), second.output()), (first.logsumexp(), second.logsumexp())):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@st.composite
def problems(draw):
    """Scores with hidden keys (whole blocks and whole rows too), values, and where the keys are cut."""
    rows, keys, size = draw(st.integers(1, 4)), draw(st.integers(1, 12)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.1, 3.0, 300.0, 1e5]))
    scores = spread * torch.randn(2, rows, keys, generator=generator, dtype=torch.float64)
    hidden = torch.rand(2, rows, keys, generator=generator) < draw(st.sampled_from([0.0, 0.5, 0.9]))
    cuts = sorted(draw(st.lists(st.integers(0, keys), max_size=4)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, keys], strict=True)]
    v = torch.randn(2, keys, size, generator=generator, dtype=torch.float64)
    return scores.masked_fill(hidden, -INF), v, sizes


@settings(max_examples=40, deadline=None)
@given(problems())
def test_any_cut_of_the_keys_gives_attention_over_all_of_them(problem):
    scores, v, sizes = problem
    parts = [attend(s, x) for s, x in zip(scores.split(sizes, -1), v.split(sizes, -2), strict=True)]
    whole = merge_all(*parts)
    torch.testing.assert_close(whole.output(), reference(scores, v), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(whole.logsumexp(), scores.logsumexp(-1), rtol=1e-12, atol=1e-12)
    assert torch.equal(whole.m, scores.amax(-1)), "the running maximum is exact"
    # Associative: the right fold equals the left one. Commutative: so does the reverse order.
    close(reduce(lambda right, part: merge(part, right), reversed(parts)), whole)
    close(merge_all(*reversed(parts)), whole)


def test_three_blocks_in_every_order_and_grouping():
    scores, v = 50 * torch.randn(3, 5, 12, dtype=torch.float64), torch.randn(3, 12, 4, dtype=torch.float64)
    scores[0, 0], scores[1, :, 4:8] = -INF, -INF  # a row without keys, and a block that is hidden as a whole
    parts = [attend(s, x) for s, x in zip(scores.chunk(3, -1), v.chunk(3, -2), strict=True)]
    whole = attend(scores, v)
    for a, b, c in permutations(parts):
        close(merge(merge(a, b), c), whole)
        close(merge(a, merge(b, c)), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_block_without_a_visible_key_is_neutral_and_leaves_no_nan(dtype):
    scores, v = torch.randn(2, 3, 4, dtype=dtype), torch.randn(2, 4, 5, dtype=dtype)
    seen, hidden = attend(scores, v), attend(torch.full_like(scores, -INF), v)
    for nothing in (hidden, no_keys(seen.o), attend(scores[..., :0], v[:, :0])):
        assert all(map(torch.equal, nothing, no_keys(seen.o)))
        assert all(map(torch.equal, merge(seen, nothing), seen))
        assert all(map(torch.equal, merge(nothing, seen), seen))
        assert all(map(torch.equal, merge(nothing, nothing), nothing))
    assert not hidden.output().any()
    assert torch.equal(hidden.logsumexp(), torch.full((2, 3), -INF, dtype=dtype))


def test_large_scores_do_not_overflow():
    scores = torch.tensor([[1e4, -1e4, 0.0], [-3e38, -3e38, -3e38]])
    v = torch.eye(3)
    parts = [attend(scores[:, i : i + 1], v[i : i + 1]) for i in range(3)]
    torch.testing.assert_close(merge_all(*parts).output(), torch.tensor([[1.0, 0, 0], [1 / 3, 1 / 3, 1 / 3]]))


def test_gradients_pass_through_the_merge():
    scores = torch.randn(2, 3, 8, dtype=torch.float64)
    scores[0, 0, :4] = -INF
    scores.requires_grad_()
    v = torch.randn(2, 8, 5, dtype=torch.float64, requires_grad=True)
    parts = [attend(s, x) for s, x in zip(scores.chunk(2, -1), v.chunk(2, -2), strict=True)]
    weight = torch.randn(2, 3, 5, dtype=torch.float64)
    got = torch.autograd.grad((merge_all(*parts).output() * weight).sum(), (scores, v))
    wanted = torch.autograd.grad((reference(scores, v) * weight).sum(), (scores, v))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_dropout_multiplies_the_weights_and_not_their_sum():
    scores, v = torch.randn(3, 8, dtype=torch.float64), torch.randn(8, 5, dtype=torch.float64)
    mask = (torch.rand(3, 8) < 0.5) * 2.0
    parts = [
        attend(s, x, d)
        for s, x, d in zip(scores.chunk(2, -1), v.chunk(2, -2), mask.chunk(2, -1), strict=True)
    ]
    torch.testing.assert_close(merge_all(*parts).output(), (scores.softmax(-1) * mask) @ v)
