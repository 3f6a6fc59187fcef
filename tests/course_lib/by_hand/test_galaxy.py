"""What ``course_lib/by_hand/galaxy.py`` does beyond being equal to one device (``test_equal.py``)."""

import pytest
import torch

from course_lib.by_hand.galaxy import Multiply, Ring, deal
from course_lib.observe.ledgers.timeline import gather_timeline, record_timeline
from course_lib.runtime import current_device, launch


def test_shares_are_in_proportion_to_power_and_add_up():
    assert deal(12, [2, 1]) == [8, 4]
    assert deal(8, [2, 1, 2, 1]) == [3, 1, 3, 1]
    assert all(sum(deal(n, [3, 1, 2])) == n for n in range(20))


def spans_of_region(overlap):
    """The spans of this rank's gather and scatter on 7 tokens, by the rung; and whether few tokens are refused."""
    ring = Ring((3, 1), overlap)
    x = ring.own(torch.ones(2, 7, 3, device=current_device()))
    weight = torch.ones(5, 3, device=current_device())
    with record_timeline() as log:
        Multiply.apply(x, weight, ring.gather, ring.scatter)
        Multiply.apply(torch.ones(2, 7, 5, device=current_device()), weight.T, ring.scatter, ring.gather)
    spans = [s for s in gather_timeline(log).spans if s.rank == ring.rank and s.lane != "waiting"]
    return sorted((s.start, s.end, s.name) for s in spans)


def on_a_rank():
    with pytest.raises(ValueError, match="1 tokens are too few to deal"):
        Ring().own(torch.ones(2, 1))
    return {overlap: spans_of_region(overlap) for overlap in (True, False)}


def test_a_tile_is_multiplied_while_another_one_is_passed_on_and_on_the_rung_before_it_is_not():
    for rank, spans in enumerate(launch(on_a_rank, 2)):
        mine, other, passed = f"tile {rank}", f"tile {1 - rank}", "tile passed on"
        assert [name for *_, name in spans[True]] == [passed, mine, other, other, passed, mine]
        for passing, product in ((spans[True][0], spans[True][1]), (spans[True][4], spans[True][5])):
            assert passing[0] <= product[0]
            assert product[1] <= passing[1]
        assert [name for *_, name in spans[False]] == [passed, mine, other, other, mine, passed]
