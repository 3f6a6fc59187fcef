"""What renting GPUs for Llama 2 70B costs, and its picture (chapter 07)."""

import pytest

from course_lib.chapters.rented import A100, MEASURED, RUN, Rented, fewest, plot_rented
from simulator.plots.picture import smallest_text


def test_more_texts_need_more_gpus():
    one, four = fewest(1, prefetch=True), fewest(4, prefetch=True)
    assert one.gpus < four.gpus
    assert max(one.memory, four.memory) <= A100.memory
    assert not any(fits for fits in (Rented(one.gpus - 1).fits, Rented(four.gpus - 1, 4).fits))
    assert fewest(4, prefetch=False).gpus <= four.gpus
    with pytest.raises(ValueError, match="texts"):
        fewest(0, prefetch=True)
    with pytest.raises(ValueError, match="too many"):
        fewest(100, prefetch=True)


def test_a_gather_is_paid_by_all_tokens_of_a_gpu():
    assert Rented(24, 2).hours < 0.85 * Rented(24, 1).hours  # the link bounds one text
    assert Rented(24, 1).hours < Rented(24, 1, prefetch=False).hours
    assert Rented(40, 1).hours == pytest.approx(Rented(24, 1).hours, rel=0.02)  # not the number of GPUs


def test_prefetch_takes_a_layer_more():
    assert Rented(24).memory > Rented(24, prefetch=False).memory + 1.7e9


def test_a_dot_for_each_try_that_fits():
    picture = plot_rented([Rented(14), Rented(18), Rented(28, 4), Rented(28, 4, False)])
    assert picture.alt.count("GPUs,") == 3 + 1  # of the measured run
    assert "28 GPUs, 4 texts each, without prefetch" in picture.alt
    assert str(Rented(14)).endswith("does not fit")
    for word in ("texts on each GPU", "with prefetch", "billion tokens"):
        assert word in picture.svg
    assert smallest_text(picture.svg) >= 11
    assert "nothing that fits" in plot_rented([Rented(14)]).alt


def test_the_price_is_near_the_one_that_was_measured():
    assert Rented(RUN.plan.dp, RUN.plan.micro_batch).hours == pytest.approx(MEASURED, rel=0.06)
