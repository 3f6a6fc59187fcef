"""Chapter 04's last task: which messages make it, and which do not."""

import pytest

from course_lib.chapters.refused import Refused
from course_lib.chapters.your_messages import TENSORS, price_messages
from simulator.inputs.known_devices import find_device
from simulator.predict.collective_time import group_link

CARDS = group_link(1000, 1, find_device("h100"))
SMALL = list(TENSORS[:8])


@pytest.mark.parametrize(
    ("messages", "verdict", "together"),
    [
        ([("tree", SMALL), *(("ring", [size]) for size in TENSORS[8:])], "Not yet below 700: 1,473", "53.03"),
        ([("tree", [size]) for size in TENSORS], "Not yet below 700: 834", "30.02"),
        ([("ring", TENSORS[:-1]), ("tree", [200])], "Not yet below 700: 728", "26.21"),
        ([("ring", [*SMALL, 60, 200]), ("tree", [40]), ("tree", [120])], "You made it: 669", "24.08"),
        (
            [("ring", [*SMALL, 40, 200]), ("tree", [60]), ("tree", [120])],
            "Not yet below 700: 700.27",
            "25.21",
        ),
        (
            [("ring", [40, 60, 200]), ("tree", [120]), *(("tree", [s]) for s in SMALL)],
            "You made it: 688",
            "24.78",
        ),
        ([("ring", TENSORS)], "It does not fit: 457 MB are copied", "14.84"),
    ],
)
def test_what_a_step_takes(messages, verdict, together):
    lines = price_messages(messages, CARDS).text.splitlines()
    assert lines[0].startswith(verdict)
    assert lines[-1].split()[-1] == together


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([("tree", [60])], "the tensor of 0.001 MB is in 0 messages, not in one"),
        ([("tree", TENSORS), ("ring", [60])], "the tensor of 60 MB is in 2 messages, not in one"),
        ([("star", TENSORS)], "the way of a message is 'tree' or 'ring', not 'star'"),
        ([("tree", 60)], r'a message is a way and a list of tensors, such as \("tree", \[60, 40\]\)'),
        ([("tree", [61])], "there is no tensor of 61 MB"),
    ],
)
def test_nothing_may_be_left_out(messages, sentence):
    with pytest.raises(Refused, match=sentence):
        price_messages(messages, CARDS)
