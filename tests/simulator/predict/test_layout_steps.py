"""What a step between two layouts sends: the formulas of the collectives that make it."""

from fractions import Fraction

import pytest

from simulator.inputs.galaxy import STEPS
from simulator.predict.collective_traffic import sent_bytes
from simulator.predict.layout_steps import LAYOUTS, sent_by_step

COLLECTIVES = {
    ("part", "slice"): "all-to-all",
    ("slice", "part"): "all-to-all",
    ("slice", "whole"): "all-gather",
    ("sum", "slice"): "reduce-scatter",
} | {step: name for step, name in STEPS.items() if name != "split"}
FREE = {("whole", "part"), ("whole", "slice"), ("part", "sum"), ("slice", "sum")}


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_a_step_costs_what_its_collective_sends(ranks):
    size = ranks * ranks * 24
    for before in LAYOUTS:
        for after in LAYOUTS:
            sent = sent_by_step(before, after, ranks)
            if (before, after) in FREE:
                assert sent == 0
            elif name := COLLECTIVES.get((before, after)):
                # an all-to-all is counted from what one rank holds
                payload = size / ranks if name == "all-to-all" else size
                assert sent * size == pytest.approx(sent_bytes(name, payload, ranks))
            else:
                assert sent is None


def test_an_unknown_layout_is_named():
    with pytest.raises(ValueError, match="before must be one of whole, part, slice, sum, not column"):
        sent_by_step("column", "whole", 2)


def test_it_is_exact():
    assert sent_by_step("sum", "whole", 3) == Fraction(4, 3)
