"""Chapter 04's last task: which messages make it, and which do not."""

import pytest

from course_lib.chapters.refused import Refused
from course_lib.chapters.your_messages import TENSORS, price_messages
from simulator.inputs.known_devices import find_device
from simulator.predict.collective_time import group_link

CARDS = group_link(1000, 1, find_device("h100"))
SMALL, *LARGE = list(TENSORS[:8]), *([size] for size in TENSORS[8:])


@pytest.mark.parametrize(
    ("messages", "verdict", "together"),
    [
        ([SMALL, *LARGE], "Not yet below 700: ", "29.184"),
        ([[size] for size in TENSORS], "Not yet below 700: ", "30.024"),
        ([TENSORS[:-1], [200]], "Not yet below 700: 728", ""),
        ([SMALL, [40, 60, 120], [200]], "Not yet below 700: ", ""),
        ([[*SMALL, 60, 200], [40], [120]], "You made it: 669", ""),
        ([[*SMALL, 40, 200], [60], [120]], "Not yet below 700: 700.27", ""),
        ([[40, 60, 200], [120], *([s] for s in SMALL)], "You made it: 688", ""),
        ([TENSORS], "It does not fit: 457 MB are copied", ""),
    ],
)
def test_what_a_step_takes(messages, verdict, together):
    lines = price_messages(messages, CARDS).text.splitlines()
    assert lines[0].startswith(verdict)
    assert lines[-1].split()[-1].startswith(together)


def test_each_message_goes_the_cheaper_way():
    lines = price_messages([[*SMALL, 60, 200], [40], [120]], CARDS).text.splitlines()
    assert ["ring" in line for line in lines[-4:-1]] == [True, False, False]
    assert ["tree" in line for line in lines[-4:-1]] == [False, True, True]


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([[60]], "the tensor of 0.001 MB is in 0 messages, not in one"),
        ([TENSORS, [60]], "the tensor of 60 MB is in 2 messages, not in one"),
        ([60], r"a message is a list of tensors, such as \[60, 40\]"),
        ([[]], r"a message is a list of tensors, such as \[60, 40\]"),
        ([[61]], "there is no tensor of 61 MB"),
    ],
)
def test_nothing_may_be_left_out(messages, sentence):
    with pytest.raises(Refused, match=sentence):
        price_messages(messages, CARDS)
