import pytest
import torch

from course_lib.observe.show.exponents import LOST, WHOLE, exponents, lost, plot_exponents


def test_octaves_of_many_tensors():
    found = exponents([torch.tensor([1.0, -1.5, 2.0, 0.0]), torch.tensor([[0.75]]), torch.zeros(3)])
    assert found == {0: 2, 1: 1, -1: 1}


def test_lost_is_what_a_real_conversion_loses():
    smallest = 2.0**-24
    values = torch.tensor([smallest, smallest / 2, smallest * 0.6, 1.0, 70_000.0, 0.0])
    assert lost([values], torch.float16) == pytest.approx(2 / 5)  # one rounds to zero, one to infinity
    assert lost([values], torch.bfloat16) == 0
    assert lost([values[:4]], torch.float16, scale=2.0) == 0
    assert lost([torch.zeros(2)], torch.float16) == 0


def test_colours_follow_the_format():
    below, inside = torch.tensor([2.0**-30]), torch.tensor([1.0])
    assert LOST in plot_exponents({"small": [below]}, alt="one bar").svg.split("legend")[0]
    picture = plot_exponents({"small": [below]}, torch.bfloat16, alt="one bar")
    assert WHOLE in picture.svg.split("legend")[0]
    assert LOST not in picture.svg.split("legend")[0]
    assert picture.alt == "one bar"
    with pytest.raises(ValueError, match="'nothing' has no number other than zero"):
        plot_exponents({"one": [inside], "nothing": [torch.zeros(2)]}, alt="")
