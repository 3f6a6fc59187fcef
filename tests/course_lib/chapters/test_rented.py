"""What renting GPUs for Llama 2 70B costs, and its picture (chapter 07)."""

import pytest

from course_lib.chapters.rented import A100, LIMIT, MEASURED, RUN, Rented, fullest, plot_rented
from simulator.plots.picture import smallest_text
from simulator.published import published_rows


def test_as_many_sequences_as_fit():
    for gpus in (24, 40):
        full = fullest(gpus)
        assert full.fits
        assert full.prefetch
        assert not full._replace(sequences=full.sequences + 1).fits
    assert fullest(24).sequences < fullest(40).sequences
    assert fullest(48, prefetch=False).sequences > fullest(48).sequences
    assert fullest(16).sequences == 1
    assert not fullest(16).fits
    with pytest.raises(ValueError, match="gpus"):
        fullest(0)


def test_communication_adds_the_same_to_two_sequences():
    (computing, added), (twice, same) = Rented(32, 1).seconds, Rented(32, 2).seconds
    assert twice == pytest.approx(2 * computing, rel=0.05)
    assert same == pytest.approx(added, rel=0.1)
    assert Rented(32, 1, prefetch=False).seconds[1] > 1.4 * added


def test_a_gather_is_paid_by_all_tokens_of_a_gpu():
    assert Rented(24, 2).hours < 0.85 * Rented(24, 1).hours  # the link bounds one sequence
    assert Rented(24, 1).hours < Rented(24, 1, prefetch=False).hours
    assert Rented(40, 1).hours == pytest.approx(Rented(24, 1).hours, rel=0.02)  # not the number of GPUs


def test_prefetch_takes_a_layer_more():
    assert Rented(24).memory > Rented(24, prefetch=False).memory + 1.7e9


def test_a_fit_leaves_room_for_what_measured_runs_held_more():
    more = [
        row.printed / row.predicted() for row in published_rows() if row.group == "B200 torchtitan memory"
    ]
    assert len(more) == 3
    assert LIMIT * max(more) < A100.memory
    assert str(Rented(24, 3)).endswith("too close to 80 GB")
    assert str(Rented(16)).endswith("out of memory")


def test_a_dot_for_each_try():
    picture = plot_rented([Rented(16), Rented(32, 4), Rented(32, 4, False)])
    assert picture.alt.count("GPUs,") == 3 + 1  # of the measured run
    assert "32 GPUs, 4 sequences each, without prefetch" in picture.alt
    for word in ("sequences on each GPU", "without prefetch", "billion tokens", "80 GB", "refused"):
        assert word in picture.svg
    assert smallest_text(picture.svg) >= 11
    fits = plot_rented([Rented(32)])
    assert "refused" not in fits.svg
    assert "without prefetch" not in fits.svg
    assert "nothing was tried" in plot_rented([]).alt


def test_the_price_is_near_the_one_that_was_measured():
    assert Rented(RUN.plan.dp, RUN.plan.micro_batch).hours == pytest.approx(MEASURED, rel=0.06)
