"""The schedules of ``course_lib/by_hand/pipeline.py`` are those of the simulator."""

from itertools import product

import pytest

from course_lib.by_hand.pipeline import RUNGS
from simulator.pipeline.schedules import make_schedule


@pytest.mark.parametrize("name", RUNGS)
def test_a_schedule_has_the_simulators_actions_in_the_same_order(name):
    for p, m in product(range(1, 6), range(1, 9)):
        expected = [list(actions) for actions in make_schedule(name, p, m).actions]
        assert RUNGS[name]["schedule"](p, m) == expected, (p, m)
