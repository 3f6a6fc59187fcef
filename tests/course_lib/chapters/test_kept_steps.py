"""The steps that keep tensors: of attention with dropout three with tables, without it one step with none."""

import pytest
import torch
from torch import nn

from course_lib.chapters.kept_steps import draw_kept
from course_lib.models.bert import BertCore


@pytest.mark.parametrize(("dropout", "tables"), [(0.1, 3), (0.0, 0)])
def test_tables_are_counted(dropout, tables):
    picture = draw_kept(BertCore(dropout).train(), *torch.zeros(3, 1, 2, 64, 16))
    assert f"with {tables} tables" in picture.alt
    assert picture.svg.count(">matrix product<") == (2 if tables else 0)
    assert (">keeps a table<" in picture.svg) == bool(tables)


def test_a_step_that_is_not_known_has_its_name_in_pytorch():
    assert "TanhBackward0, its result 2×3: 24 B" in draw_kept(nn.Tanh(), torch.zeros(2, 3)).alt


def test_a_number_is_handed_on():
    class Stretched(nn.Module):
        def forward(self, x, factor):
            return (x * factor).tanh()

    assert "its result 2×3: 24 B" in draw_kept(Stretched(), torch.zeros(2, 3), 0.5).alt


def test_nothing_is_kept():
    with pytest.raises(ValueError, match="Flatten keeps nothing"):
        draw_kept(nn.Flatten(), torch.zeros(2, 3, 4))
