"""Which part of a parameter without values a rank asks for."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from course_lib.data_parallel.first_values import FirstValues


def test_a_part_is_asked_for_in_the_whole():
    with torch.device("meta"):
        model = nn.Linear(6, 8)
    asked = []
    read = lambda name, extents: asked.append((name, extents)) or torch.zeros(1)  # noqa: E731
    cut = {"by rows": SimpleNamespace(dim=0, start=4), "by columns": SimpleNamespace(dim=1, start=3)}
    first = FirstValues(model, read, {"by columns": "its first name"}, cut)
    first.part("whole", (8, 6))
    first.part("by rows", (4, 6), rows=(1, 3))
    first.part("by columns", (8, 3), rows=(1, 3))
    assert asked == [
        ("whole", [(0, 8), (0, 6)]),
        ("by rows", [(5, 7), (0, 6)]),
        ("its first name", [(1, 3), (3, 6)]),
    ]


def test_parameters_that_nobody_reads_are_named():
    with torch.device("meta"):
        model = nn.Linear(6, 8)
    with pytest.raises(
        ValueError, match=r"bias, weight have no values \(they are on the meta device\): give read="
    ):
        FirstValues(model, None, {}, {})
    FirstValues(nn.Linear(6, 8), None, {}, {})
