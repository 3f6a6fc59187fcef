"""Parameters alive under FSDP, by hand."""

import pytest

from simulator.predict.unsharded import unsharded_history


def wholes(**settings):
    history = unsharded_history([40, 40, 40], ranks=4, root_bytes=20, **settings)
    assert {held.parameters for held in history.held} == {(3 * 40 + 20) / 4}
    return [held.buffers for held in history.held]


def test_the_unit_in_use_and_those_ahead():
    assert wholes(prefetch=0) == [0, *[20 + 40] * 6, 0]
    assert wholes() == wholes(prefetch=1) == [0, 100, 100, 60, 100, 100, 60, 0]
    assert wholes(prefetch=9) == [0, 140, 100, 60, 140, 100, 60, 0]


def test_without_resharding_units_pile_up_until_backward():
    assert wholes(prefetch=0, reshard=False) == [0, 60, 100, 140, 140, 100, 60, 0]


def test_the_peak_says_where_it_is():
    history = unsharded_history([10, 10, 50, 50, 10], ranks=2, prefetch=1)
    assert history.peak == (130 / 2 + 100, 3, "forward block 2")
    assert history.actions[-2:] == ("backward block 0", "")


@pytest.mark.parametrize(
    ("units", "settings", "sentence"),
    [
        ([], {}, r"unit bytes must be a list of at least one unit, not \[\]"),
        ([1], {"prefetch": -1}, "prefetch must be a whole number of at least 0, not -1"),
        ([-1], {}, "each of unit bytes must be a number of at least 0, not -1"),
    ],
)
def test_bad_input_is_named(units, settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        unsharded_history(units, ranks=2, **settings)
