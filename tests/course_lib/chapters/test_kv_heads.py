"""Heads that share: the picture of a right line has nothing red, and a wrong one names the heads."""

import pytest

from course_lib.chapters.kv_heads import judge_share, plot_caches, plot_kv_heads, plot_room


def neighbours(x, heads):
    return x.repeat_interleave(heads // len(x), 0)


def in_turn(x, heads):
    return x.repeat(heads // len(x), 1, 1)


def first(x, heads):
    return x[:1].repeat(heads, 1, 1)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (neighbours, "8 of 8 heads of queries."),
        (in_turn, "4 of 8 heads of queries. Wrong: 1, 3, 4, 6."),
        (first, "4 of 8 heads of queries. Wrong: 4, 5, 6, 7."),
    ],
)
def test_pytorch_says_which_heads_are_right(share, said):
    assert judge_share(share).alt.endswith(said)


def test_a_share_of_too_few_heads_is_refused():
    with pytest.raises(ValueError, match="8 heads need"):
        judge_share(lambda x, heads: x)
    with pytest.raises(ValueError, match="share gives NoneType; a tensor is needed"):
        judge_share(lambda x, heads: None)


def test_a_share_that_changes_what_it_was_given_is_still_judged_by_the_keys():
    assert "Wrong" in judge_share(lambda x, heads: x.zero_().repeat(heads // len(x), 1, 1)).alt


def test_kv_heads_divide_the_heads():
    assert "32, 8, 1 KV heads" in plot_kv_heads(32, (32, 8, 1)).alt
    for wrong in ([], [5], [0]):
        with pytest.raises(ValueError, match="divide"):
            plot_kv_heads(32, wrong)


def test_each_cache_is_its_product():
    alt = plot_caches({"a": (80, 64, 8, 128), "b": (32, 32, 32, 128)}).alt
    assert "2 × 80 layers × 8 KV heads × 128 numbers × 2 bytes, 328 kB; 2,621 kB if each of 64" in alt
    assert alt.endswith("524 kB.")


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (32, "30 sequences of 4,096 tokens, 70 too few."),
        (8, ": room for 100."),
        (4, "more KV heads fit too."),
    ],
)
def test_the_room_for_a_hundred_sequences_is_judged(count, said):
    assert plot_room(32, count, 128, 13.5, wanted=100).alt.endswith(said)


def test_weights_that_fill_the_gpu_leave_no_room():
    assert "weights of 138 GB do not fit into 80 GB" in plot_room(80, 8, 128, 138).alt
    with pytest.raises(ValueError, match="above 0"):
        plot_room(80, 0, 128, 138)
