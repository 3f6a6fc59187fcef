"""Heads that share: the picture of a right line has nothing red, and a wrong one names the heads."""

import pytest

from course_lib.chapters.kv_heads import judge_share, plot_rates, plot_rooms
from simulator.plots.picture import smallest_text


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


def test_tokens_a_second_stop_growing_where_computing_passes_reading():
    slow = {"weights": 4, "cache": 1, "computing": 0.01, "fit": 20}
    fast = {"weights": 4, "cache": 0.01, "computing": 0.02, "fit": 1000}
    picture = plot_rates({"a": slow, "b": fast})
    assert "a, 20 sequences, 833 tokens a second, reading 24 ms, computing 0.2 ms" in picture.alt
    assert "b, 1,000 sequences, 50,000 tokens a second, reading 14 ms, computing 20 ms" in picture.alt
    assert picture.alt.endswith("; from 400 sequences on computing takes longer.")
    assert smallest_text(picture.svg) >= 11
    with pytest.raises(ValueError, match="one or more models"):
        plot_rates({})
    with pytest.raises(ValueError, match="b: no sequence fits"):
        plot_rates({"a": slow, "b": fast | {"fit": 0}})


def model(kv_heads, weights_gb=13.5, layers=32):
    return {"layers": layers, "kv_heads": kv_heads, "d": 128, "weights_gb": weights_gb}


def test_the_room_of_each_model_is_said_and_a_sequence_is_seen_where_few_fit():
    picture = plot_rooms({"a": model(32), "b": model(8)})
    assert picture.alt.endswith("a: 61 sequences of 2,048 tokens; b: 247 sequences of 2,048 tokens.")
    (cuts,) = picture._figure.axes[0].collections
    assert len(cuts.get_segments()) == 60
    assert "a: 30 sequences of 4,096 tokens" in plot_rooms({"a": model(32)}, tokens=4096).alt
    assert smallest_text(picture.svg) >= 11


def test_weights_that_fill_the_gpu_leave_no_room():
    assert "weights of 138 GB do not fit into 80 GB" in plot_rooms({"a": model(8, 138, 80)}).alt
    with pytest.raises(ValueError, match="above 0"):
        plot_rooms({"a": model(0)})
    with pytest.raises(ValueError, match="one or more models"):
        plot_rooms({})
    with pytest.raises(ValueError, match="each with d, kv_heads"):
        plot_rooms({"a": {"layers": 2}})
