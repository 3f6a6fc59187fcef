"""Chapter 04's last task: which messages make it, and which do not."""

import pytest

from course_lib.chapters.refused import Refused
from course_lib.chapters.your_messages import TENSORS, price_messages
from simulator.inputs.known_devices import find_device
from simulator.predict.collective_time import group_link

H100 = find_device("h100")
CARDS = group_link(1000, 1, H100)
SMALL, *LARGE = list(TENSORS[:8]), *([size] for size in TENSORS[8:])


@pytest.mark.parametrize(
    ("messages", "verdict", "together"),
    [
        ([SMALL, *LARGE], "Not yet below 240: 354.", ""),
        ([[size] for size in TENSORS], "Not yet below 240: ", ""),
        ([TENSORS[:8] + TENSORS[9:11], [40], [200]], "Not yet below 240: 269.", ""),
        ([[s for s in TENSORS[:-1] if s != 10], [10], [200]], "Not yet below 240: 244.", ""),
        ([[s for s in TENSORS[:-1] if s != 5], [5], [200]], "You made it: 237.", ""),
        ([[s for s in TENSORS[:-1] if s != 2], [2], [200]], "You made it: 233.", "8."),
        ([TENSORS[:-1], [200]], "It does not fit: 257 MB are copied, into buffers of 256 MB", ""),
        ([TENSORS], "It does not fit: 457 MB are copied", ""),
    ],
)
def test_what_a_step_takes(messages, verdict, together):
    lines = price_messages(messages, CARDS, H100).text.splitlines()
    assert lines[0].startswith(verdict)
    assert lines[-1].split()[-1].startswith(together)


def test_each_message_goes_the_fastest_way():
    lines = price_messages([[*SMALL, 60], [40], [120], [200]], CARDS, H100).text.splitlines()
    assert ["rings by levels" in line for line in lines[-5:-1]] == [True] * 4
    lines = price_messages([[*SMALL[1:], *TENSORS[8:]], SMALL[:1]], CARDS, H100).text.splitlines()
    assert "tree" in lines[-2]


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
        price_messages(messages, CARDS, H100)
