"""Chapter 04's last task: which messages make it, and which do not."""

import pytest

from course_lib.chapters.your_messages import time_step
from simulator.inputs.known_devices import find_device

LINK = find_device("h100").network


@pytest.mark.parametrize(
    ("gradients", "numbers", "verdict", "together"),
    [
        ([("tree", 25e6)] * 40, [("ring", 4)] * 100, "Not yet below 63 ms.", "1,703.6"),
        ([("ring", 1e9)], [("ring", 400)], "Not yet below 63 ms.", "73.9"),
        ([("ring", 1e9)], [("tree", 4)] * 100, "Not yet below 63 ms.", "73.9"),
        ([("ring", 1e9)], [("tree", 400)], "You made it.", "62.1"),
        ([("ring", 5e8)] * 2, [("tree", 400)], "Not yet below 63 ms.", "74.0"),
    ],
)
def test_what_a_step_takes(gradients, numbers, verdict, together):
    lines = time_step(gradients, numbers, LINK).text.splitlines()
    assert lines[0] == verdict
    assert lines[-1].split() == ["together", together]


def test_nothing_may_be_left_out():
    with pytest.raises(
        ValueError, match="gradients are 1,000,000,000 bytes, and your messages hold 25,000,000"
    ):
        time_step([("tree", 25e6)], [("tree", 400)], LINK)
