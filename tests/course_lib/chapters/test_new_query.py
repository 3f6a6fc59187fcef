"""Chapter 02's cache: the judge sees a key that was dropped, a mask that hides, and one that hides nothing."""

import pytest
import torch
import torch.nn.functional as F
from matplotlib.colors import to_rgba

from course_lib.chapters.new_query import RIGHT, judge_cache, plot_new_query


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
        (lambda queries, keys: torch.zeros(queries, keys, dtype=torch.bool), behind, 3),
        (last_key, lambda kept, new: torch.cat([new, kept], 1), 5),
        (lambda queries, keys: last_key(queries, keys) & (queries == keys), behind, 5),
    ],
)
def test_calls_of_three_two_and_one_are_compared_with_pytorch(triangle, append, right):
    picture = judge_cache(learners(triangle, append))
    assert f"right results: {right} of 6: the query of token" in picture.alt


def test_the_first_wrong_query_is_drawn_with_the_cache_that_it_met():
    swapped = judge_cache(learners(last_key, lambda kept, new: torch.cat([new, kept], 1))).alt
    assert "5 of 6: the query of token 4 puts" in swapped
    assert "0 % on keys 1 to 6." in swapped  # key 6 comes later
    assert "Not in" not in swapped
    assert "6 of 6: the query of token 6 puts" in judge_cache(learners(last_key, behind)).alt


def test_a_key_that_was_not_kept_is_named():
    picture = judge_cache(learners(last_key, lambda kept, new: new))
    assert "Not in the cache: 1, 2, 3." in picture.alt
    assert [text.get_text() for text in picture._figure.axes[0].texts].count("none") == 3
    assert "Not in" not in judge_cache(learners(last_key, behind)).alt


def test_all_queries_are_drawn_green_or_red():
    axis = judge_cache(learners(first_key, behind))._figure.axes[0]
    drawn = [(point.get_offsets()[0], point.get_facecolor()[0]) for point in axis.collections]
    colours = [tuple(colour) for (_, height), colour in drawn if height == 1]
    assert len(colours) == 6
    assert [colour == to_rgba(RIGHT) for colour in colours] == [True] * 3 + [False] * 3


def test_what_is_no_result_is_refused():
    with pytest.raises(ValueError, match="gives NoneType; the result"):
        judge_cache(lambda x, W, kept: (None, kept))
    with pytest.raises(ValueError, match="keeps NoneType, NoneType"):
        judge_cache(lambda x, W, kept: (x, (None, None)))
    with pytest.raises(ValueError, match="give one or more panels"):
        plot_new_query({})


def test_pytorch_with_the_mask_that_ends_at_the_last_key_is_right_behind_a_cache():
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, 6, 32, generator=draw) for n in (8, 2, 2))
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    for new in (1, 3, 6):
        mask = ~last_key(new, 6)
        some = F.scaled_dot_product_attention(q[:, -new:], k, v, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(some, whole[:, -new:])


def test_pytorchs_triangle_too_begins_at_the_first_key():
    draw = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 1, 32, generator=draw), torch.randn(1, 6, 32, generator=draw)
    weights = F.scaled_dot_product_attention(q, k, torch.eye(6)[None], is_causal=True)
    torch.testing.assert_close(weights[0, 0], torch.eye(6)[0])
    assert (
        "puts 100 %, 0 %, 0 %, 0 %, 0 %, 0 % on keys 1 to 6."
        in plot_new_query({"a": weights[0, 0].tolist()}).alt
    )
