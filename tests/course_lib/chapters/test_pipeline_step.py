from itertools import product

import pytest

from course_lib.by_hand.pipeline import gpipe, in_order, one_f_one_b, zb_h1
from course_lib.chapters.pipeline_step import (
    border,
    in_flight,
    plot_beginning,
    plot_orders,
    predicted,
    schedule_of,
    try_order,
)
from simulator.pipeline.schedules import SCHEDULES, make_schedule


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_order_is_the_simulators_schedule(name):
    schedule = make_schedule(name, 4, 8)
    found = schedule_of(name, schedule.actions)
    assert (found.actions, found.chunks, found.placement) == (
        schedule.actions,
        schedule.chunks,
        schedule.placement,
    )


def test_what_the_chapter_says_of_the_orders_by_hand():
    lengths = {order.__name__: predicted(order(4, 8)).makespan for order in (gpipe, one_f_one_b, zb_h1)}
    assert lengths == {"gpipe": 33, "one_f_one_b": 33, "zb_h1": 27}
    slow = [predicted(order(4, 8), transfer=1).makespan for order in (gpipe, one_f_one_b, zb_h1)]
    assert slow == [39, 49, 41]
    assert in_flight(gpipe(4, 8)) == [8] * 4
    assert in_flight(one_f_one_b(4, 64)) == [4, 3, 2, 1]
    assert in_flight(zb_h1(4, 8)) == [4] * 4


def test_only_one_choice_of_four_numbers_solves_the_task_of_the_chapter():
    def order(put_off):
        def place(kind, r, i):
            backward = i + 4 - r - 0.5
            return {"F": i, "B": backward, "W": backward + 0.1 + put_off[r]}[kind]

        return in_order(4, 8, place, kinds=("F", "B", "W"))

    found = {put_off: order(put_off) for put_off in product(range(5), repeat=4)}
    solved = [n for n, each in found.items() if predicted(each).makespan <= 27 and max(in_flight(each)) <= 4]
    assert solved == [(0, 1, 2, 3)]
    assert found[solved[0]] == zb_h1(4, 8)


def test_a_title_says_what_is_in_flight_where_the_reader_knows_the_word():
    assert "33 units, bubble 27.3%, in flight 4, 3, 2, 1" in repr(plot_orders({"1F1B": one_f_one_b(4, 8)}))
    assert "in flight" not in repr(plot_orders({"1F1B": one_f_one_b(4, 8)}, kept=False))
    assert "in flight 4, 3, 2, 1" not in repr(try_order(one_f_one_b, units=33, kept=4))


def test_the_beginning_is_cut_where_it_ends():
    drawn = repr(plot_beginning({"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8)}, 15, transfer=1))
    assert "GPipe: the first 15 units on 4 ranks: 15 long" in drawn
    assert "1F1B: the first 15 units on 4 ranks: 15 long" in drawn


def test_the_rule_of_the_chapter():
    interleaved = make_schedule("interleaved-1f1b", 4, 8).actions
    assert "28.5 units, bubble 15.8%, in flight 5.5, 4.5, 3.5, 2.5" in repr(plot_orders({"it": interleaved}))
    bubbles = [predicted(one_f_one_b(4, m)).bubble() for m in (16, 27, 28)]
    assert bubbles[0] < 0.2
    assert bubbles[1] == pytest.approx(0.1)
    assert bubbles[2] < 0.1


def test_a_colleagues_numbers_let_all_wait_for_ever_and_1f1bs_solve_the_task():
    def order(ahead):
        return lambda p, m: in_order(p, m, lambda kind, r, i: i + (ahead[r] - 0.5 if kind == "BW" else 0))

    assert "rank 0 cannot do BW0: it waits" in repr(try_order(order([2, 2, 3, 3])))
    assert repr(try_order(order([4, 3, 2, 1]), units=33, kept=4)).startswith("Solved: 33 units")
    falling = [n for n in product(range(1, 5), repeat=4) if sorted(n, reverse=True) == list(n)]
    short = [n for n in falling if predicted(order(n)(4, 8)).makespan <= 33]
    assert short == [(4, 3, 2, 1)]


def test_an_order_in_which_ranks_wait_for_ever_says_who_waits():
    def wrong_end(p, m):
        return in_order(p, m, lambda kind, r, i: i + (r + 0.5 if kind == "BW" else 0))

    said = repr(try_order(wrong_end))
    assert "until every rank waits" in said
    assert "rank 0 cannot do BW0: it waits for BW0, which rank 1 has not done" in said
    assert "rank 1 cannot do F1: it waits for F1, which rank 0 has not done" in said
    assert "33 units" in repr(try_order(gpipe))


def test_a_task_is_judged_by_its_length_and_by_what_is_in_flight():
    assert repr(try_order(one_f_one_b, units=33, kept=4)).startswith("Solved: 33 units, and at most 4 in")
    assert repr(try_order(gpipe, units=33, kept=4)).startswith("Not yet: 33 units (33 wanted), at most 8 in")
    assert repr(try_order(one_f_one_b, units=27, kept=4)).startswith("Not yet: 33 units (27 wanted)")
    for less in (lambda p, m: one_f_one_b(p, m - 1), lambda p, m: one_f_one_b(2, m)):
        assert repr(try_order(less, units=33, kept=4)).startswith(
            "Not yet: all 8 microbatches must go through"
        )


def test_a_step_that_is_too_long_says_where_a_rank_waits_after_its_first_backward():
    def ahead(p, m):
        return in_order(p, m, lambda kind, r, i: i + (3.5 if kind == "BW" else 0))

    def w_after_b(p, m):
        later = {"F": 0, "B": -0.5, "W": -0.4}
        return in_order(
            p, m, lambda kind, r, i: i + later[kind] + (p - r) * (kind != "F"), kinds=("F", "B", "W")
        )

    for order, said in [
        (ahead, "(4 allowed). Rank 3 waits from 9 to 18, before F4."),
        (w_after_b, "(4 allowed). Rank 0 waits from 21 to 22, before B5."),
        (gpipe, "(4 allowed).\n"),  # its step is not too long
    ]:
        units = 27 if order is w_after_b else 33
        assert said in repr(try_order(order, units=units, kept=4))


def test_from_which_message_on_gpipe_is_the_shortest():
    orders = [order(4, 8) for order in (gpipe, one_f_one_b, zb_h1)]
    assert border(orders[0], orders) == 0.8


@pytest.mark.parametrize("place", [None, "later", (1, None)])
def test_an_order_without_places_is_told_in_one_sentence(place):
    ahead = lambda kind, r, i: i + place if kind == "F" else place  # noqa: E731 - as a learner's cell has it
    for order in (lambda p, m: in_order(p, m, ahead), lambda p, m: None):
        said = repr(try_order(order))
        assert said.startswith("Nothing to draw: ")
        assert said.endswith("Perhaps a number is missing, or a pair such as ('F', 0).")
