"""What the learner of chapter 04 makes of twelve tensors: which choices make it, and which do not."""

import pytest

from course_lib.chapters.refused import Refused
from course_lib.chapters.your_messages import TENSORS, price_messages
from simulator.inputs.known_devices import find_device

CARD = find_device("h100").network
SMALL, LARGE = list(TENSORS[:8]), [("ring", [size]) for size in TENSORS[8:]]


def all_but(*alone):
    """The largest alone, all others in one ring, but those that go by tree."""
    return [
        ("ring", [s for s in TENSORS[:-1] if s not in alone]),
        ("ring", [200]),
        *[("tree", [s]) for s in alone],
    ]


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([("tree", SMALL), *LARGE], "Not yet below 50: 87.7 ms."),
        ([("ring", SMALL), *LARGE], "Not yet below 50: 82.8 ms."),
        ([("tree", [size]) for size in TENSORS], "Not yet below 50: 230"),
        (all_but(10), "Not yet below 50: 51"),
        (all_but(5), "You made it: 49"),
        (all_but(2), "You made it: 47.8 ms."),
        ([*all_but(2)[:-1], ("ring", [2])], "Not yet below 50: 58"),
        (all_but(), "It does not fit: 257 MB are copied, into buffers of 256 MB"),
        ([("ring", TENSORS)], "It does not fit: 457 MB are copied"),
    ],
)
def test_what_a_choice_takes(steps, verdict):
    assert price_messages(steps, CARD).text.startswith(verdict)


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ([("ring", [60])], "the tensor of 0.001 MB is in 0 all-reduces, not in one"),
        ([("ring", TENSORS), ("tree", [60])], "the tensor of 60 MB is in 2 all-reduces, not in one"),
        ([[60]], r"an all-reduce is a way and a list of tensors, such as \('tree', \[60, 40\]\)"),
        ([("star", [60])], "an all-reduce is a way and a list"),
        ([("ring", [])], r"an all-reduce needs a list of tensors, such as \('ring', \[60, 40\]\)"),
        ([("ring", 60)], "an all-reduce needs a list of tensors"),
        ([("ring", [61])], "there is no tensor of 61 MB"),
    ],
)
def test_nothing_may_be_left_out(steps, sentence):
    with pytest.raises(Refused, match=sentence):
        price_messages(steps, CARD)
