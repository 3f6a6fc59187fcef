"""Work that shares a device and a link, against every order in which the two can serve it."""

from functools import cache

import pytest

from simulator.pipeline.together import seconds_together


def earliest(first, second):
    """The least makespan over all orders."""

    @cache
    def least(a, b, t_a, t_b, free):
        ends = []
        for one, (work, at, ready) in enumerate(((first, a, t_a), (second, b, t_b))):
            if at == len(work):
                continue
            end = max(ready, free[at % 2]) + work[at]
            then = tuple(end if i == at % 2 else old for i, old in enumerate(free))
            ends.append(least(a, b + 1, t_a, end, then) if one else least(a + 1, b, end, t_b, then))
        return min(ends, default=max(t_a, t_b))

    return least(0, 0, 0, 0, (0, 0))


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        ((1, 2, 1), (1, 2, 1), 6),  # the second one's messages wait for the first one's
        ((3, 1, 3), (3, 1, 3), 12),  # messages behind computing
        ((1, 9, 1), (4,), 11),  # computing behind messages
        ((1, 9, 1), (), 11),
    ],
)
def test_one_works_while_the_other_waits(first, second, seconds):
    assert seconds_together(first, second) == seconds == earliest(first, second)


def test_who_asks_first_is_served_first():
    """The long computing goes first where it is named first, and then the link idles for 7."""
    long, short = (7, 6, 0, 6, 1), (1, 6, 0, 6, 8)
    assert seconds_together(short, long) == earliest(short, long) == 29
    assert seconds_together(long, short) == 39
    assert seconds_together() == 0
    with pytest.raises(ValueError, match="each of work must be a number of at least 0, not -1"):
        seconds_together([1, -1])
