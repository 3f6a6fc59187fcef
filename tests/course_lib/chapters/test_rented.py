"""What renting GPUs for Llama 2 70B costs, and its picture (chapter 07)."""

import pytest

from course_lib.chapters.rented import A100, BUDGET, DAYS, LIMIT, MEASURED, RUN, Rented, fullest, plot_rented
from simulator.plots.picture import smallest_text
from simulator.published import published_rows


def test_as_many_sequences_as_fit():
    for gpus in (24, 40):
        full = fullest(gpus)
        assert full.fits
        assert not full._replace(sequences=full.sequences + 1).fits
    assert fullest(24).sequences < fullest(40).sequences
    assert fullest(16).sequences == 1
    assert not fullest(16).fits
    with pytest.raises(ValueError, match="gpus"):
        fullest(0)


def test_communication_adds_the_same_to_two_sequences():
    (computing, added), (twice, same) = Rented(32, 1).seconds, Rented(32, 2).seconds
    assert twice == pytest.approx(2 * computing, rel=0.05)
    assert same == pytest.approx(added, rel=0.1)


def test_what_communication_adds_is_worked_out():
    (_, added), (beside, exposed) = Rented(128, 1).seconds, Rented(128, 1).communication
    assert beside + exposed == pytest.approx(3 * 138 / 40, rel=0.02)
    assert beside * (1 - A100.data_overlap) + exposed == pytest.approx(added)
    assert Rented(128, 2).communication[1] < 0.1 < exposed  # more computing hides all but the root
    forward, backward, rest, together = Rented(32, 1).worked().splitlines()[1:5]
    assert forward.split() == ["forward", "2.4", "s", "3.3", "s", "0.9", "s"]  # 31/32 of 138 GB / 40 GB/s
    assert backward.split()[1:] == ["7.4", "s", "6.7", "s", "0.0", "s"]
    assert rest.split()[-2:] == ["0.1", "s"]
    assert together.split()[1:] == ["9.9", "s", "10.0", "s", "1.0", "s"]
    assert "gather: 31/32 of 137 GB of weights at 40 GB/s = 3.3 s" in Rented(32, 1).worked()
    assert "9.1 s hidden / 2 + 1.0 s exposed = 5.5 s" in Rented(32, 1).worked()


def test_a_gather_is_paid_by_all_tokens_of_a_gpu():
    assert Rented(24, 2).hours < 0.85 * Rented(24, 1).hours  # the link bounds one sequence
    assert Rented(40, 1).hours == pytest.approx(Rented(24, 1).hours, rel=0.02)  # not the number of GPUs


def test_four_nodes_are_the_fewest_that_do_the_job():
    assert [gpus for gpus in range(8, 49, 8) if fullest(gpus).enough] == [32, 40, 48]
    late, dear = Rented(24, 2), Rented(48, 1)
    assert late.fits
    assert late.days > DAYS
    assert dear.days < DAYS
    assert dear.hours > BUDGET
    assert not dear.enough


def test_a_fit_leaves_room_for_what_measured_runs_held_more():
    more = [
        row.printed / row.predicted() for row in published_rows() if row.group == "B200 torchtitan memory"
    ]
    assert len(more) == 3
    assert LIMIT * max(more) < A100.memory
    assert str(Rented(24, 3)).endswith("too close to 80 GB")
    assert str(Rented(16)).endswith("out of memory")


def test_a_dot_for_each_try():
    picture = plot_rented([Rented(16), Rented(32, 4), Rented(128)])
    assert picture.alt.count("GPUs,") == 3
    assert "32 GPUs, 4 sequences each: 74.2 GB, 9.5 days" in picture.alt
    for word in (
        "sequences on each GPU",
        "billion tokens",
        "80 GB",
        "fails",
        "does the job",
        "budget",
        "8,000 GPU-hours",
    ):
        assert word in picture.svg
    assert smallest_text(picture.svg) >= 11
    assert "does the job" not in plot_rented([Rented(32)]).svg
    assert "fails" not in plot_rented([Rented(32, 3)]).svg
    assert "nothing was tried" in plot_rented([]).alt


def test_the_price_is_near_the_one_that_was_measured():
    assert Rented(RUN.plan.dp, RUN.plan.micro_batch).hours == pytest.approx(MEASURED, rel=0.06)
