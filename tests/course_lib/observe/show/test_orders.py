"""A learner's own order is drawn as far as it goes, and nothing that is wrong with it is raised."""

from course_lib.observe.show.orders import draw_order, schedule_of


def in_turn(rank, ranks, microbatches):
    return [(kind, i) for i in range(microbatches) for kind in "FB"]


def test_an_order_that_ends_is_drawn_with_its_length():
    picture = draw_order(in_turn, 2, 3)
    assert repr(picture) == (
        "Timeline of your order: 18 units of time on 2 ranks: 18 long, 50.0% of the computing time idle."
    )


def test_a_backward_is_whole_where_no_weights_stand_apart():
    kinds = [action.kind for action in schedule_of(in_turn, 1, 1).actions[0]]
    assert kinds == ["F", "BW"]
    split = schedule_of(lambda *_: [("F", 0), ("B", 0), ("W", 0)], 1, 1)
    assert [action.kind for action in split.actions[0]] == ["F", "B", "W"]


def test_ranks_that_wait_for_ever_are_drawn_until_then_and_the_sentences_say_for_what():
    def too_late(rank, ranks, microbatches):
        return in_turn(rank, ranks, microbatches) if rank == 0 else [("F", 0), ("F", 1), ("B", 0), ("B", 1)]

    shown = draw_order(too_late, 2, 2)
    assert "your order, until every rank waits" in repr(shown)
    assert "rank 0 cannot do B0: it waits for B0, which rank 1 has not done" in repr(shown)
    assert "data:image/svg+xml" in shown.html
    backwards_first = draw_order(lambda *_: [("B", 0), ("F", 0)], 1, 1)
    assert repr(backwards_first) == "rank 0 cannot do B0: it waits for F0, which it does only later itself"


def test_what_cannot_be_drawn_is_said():
    def unwritten(*_):
        raise NotImplementedError

    assert "not written yet" in repr(draw_order(unwritten, 2, 2))
    assert repr(draw_order(lambda *_: None, 2, 2)).endswith(
        "Perhaps a number is missing, or a pair such as ('F', 0)."
    )
    assert "microbatches" in repr(draw_order(lambda *_: [("F", 7)], 2, 2))
