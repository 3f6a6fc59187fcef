"""What renting GPUs for Llama 2 70B costs, and its picture (chapter 07)."""

import pytest

from course_lib.chapters.rented import MEASURED, RUN, Rented, fullest, plot_rented
from simulator.plots.picture import smallest_text


def test_as_many_texts_as_fit():
    for gpus in (24, 40):
        full = fullest(gpus)
        assert full.fits
        assert full.prefetch
        assert not full._replace(texts=full.texts + 1).fits
    assert fullest(24).texts < fullest(40).texts
    assert fullest(32, prefetch=False).texts > fullest(32).texts
    assert fullest(16).texts == 1
    assert not fullest(16).fits
    with pytest.raises(ValueError, match="gpus"):
        fullest(0)


def test_messages_add_the_same_to_two_texts():
    (computing, messages), (twice, same) = Rented(32, 1).seconds, Rented(32, 2).seconds
    assert twice == pytest.approx(2 * computing, rel=0.05)
    assert same == pytest.approx(messages, rel=0.1)
    assert Rented(32, 1, prefetch=False).seconds[1] > 1.4 * messages


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
