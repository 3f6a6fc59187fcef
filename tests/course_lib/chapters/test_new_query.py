"""Chapter 02's cache: the judge sees a key that was dropped, a mask that hides, and one that hides nothing."""

import pytest
import torch
import torch.nn.functional as F

from course_lib.chapters.new_query import judge_cache, plot_new_query


def learners(triangle, append):
    def core(q, k, v):
        scores = q @ k.mT / 32**0.5
        hidden = triangle(*scores.shape[1:])
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v

    def split(x):
        return x.unflatten(-1, (-1, 32)).transpose(0, 1)

    def step(x, W, kept):
        q, k, v = (split(x @ W[name].T) for name in "qkv")
        k, v = append(kept[0], k), append(kept[1], v)
        return core(q, k, v).transpose(0, 1).flatten(1) @ W["o"].T, (k, v)

    return step


def first_key(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).triu(1)


def last_key(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries)


def behind(kept, new):
    return torch.cat([kept, new], 1)


@pytest.mark.parametrize(
    ("triangle", "append", "right"),
    [
        (last_key, behind, 6),
        (first_key, behind, 3),
        (first_key, lambda kept, new: new, 3),
        (lambda queries, keys: torch.zeros(queries, keys, dtype=torch.bool), behind, 4),
    ],
)
def test_three_at_once_and_three_one_by_one_are_compared_with_pytorch(triangle, append, right):
    assert f"right results: {right} of 6" in judge_cache(learners(triangle, append)).alt


def test_a_key_that_was_not_kept_is_named():
    picture = judge_cache(learners(last_key, lambda kept, new: new))
    assert "Not in the cache: 1, 2, 3, 4, 5." in picture.alt
    assert [text.get_text() for text in picture._figure.axes[0].texts].count("none") == 5
    assert "Not in" not in judge_cache(learners(last_key, behind)).alt


def test_what_is_no_result_is_refused():
    with pytest.raises(ValueError, match="gives NoneType; the result"):
        judge_cache(lambda x, W, kept: (None, kept))
    with pytest.raises(ValueError, match="keeps NoneType, NoneType"):
        judge_cache(lambda x, W, kept: (x, (None, None)))
    with pytest.raises(ValueError, match="give one or more panels"):
        plot_new_query({})


def test_pytorchs_triangle_too_begins_at_the_first_key():
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 1, 32, generator=draw), torch.randn(1, 6, 32, generator=draw)
    weights = F.scaled_dot_product_attention(q, k, torch.eye(6)[None], is_causal=True)
    torch.testing.assert_close(weights[0, 0], torch.eye(6)[0])
    assert (
        "puts 100 %, 0 %, 0 %, 0 %, 0 %, 0 % on keys 1 to 6."
        in plot_new_query({"a": weights[0, 0].tolist()}).alt
    )
