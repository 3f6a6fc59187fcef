"""A learner's rule of admission: served step by step, drawn, and what keeps it from either."""

import pytest

from course_lib.observe.show.admission import draw_admission, serve_by
from simulator.plots.picture import Picture
from simulator.predict.serving import Arrival

TWO = [Arrival(4, 5), Arrival(4, 5)]


def one_by_one(running, waiting, blocks, size):
    return 0 if running else 1


def unwritten(running, waiting, blocks, size):
    raise NotImplementedError


def test_a_rule_is_served_to_the_end():
    served = serve_by(one_by_one, TWO, blocks=2, block_size=4)
    assert served.problem == ""
    assert served.admitted == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert served.history.tokens == [4, 5, 6, 7, 8] * 2
    assert isinstance(draw_admission(one_by_one, TWO, 2, 4), Picture)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (lambda r, w, b, s: len(w), "step 1: 4 blocks are needed, and there are 3"),
        (lambda r, w, b, s: 0, "step 0: nothing is in the cache, 2 wait, and none is admitted"),
        (lambda r, w, b, s: 3, "the rule returns 3, where 2 wait: not a whole number from 0 to 2"),
        (lambda r, w, b, s: w[:1], "the rule returns"),
    ],
)
def test_what_goes_wrong_is_a_sentence(rule, problem):
    assert problem in serve_by(rule, TWO, blocks=3, block_size=4).problem
    assert isinstance(str(draw_admission(rule, TWO, 3, 4)), str)


def test_an_unwritten_rule_is_not_an_error():
    assert "not written yet" in repr(draw_admission(unwritten, TWO, 3, 4))
