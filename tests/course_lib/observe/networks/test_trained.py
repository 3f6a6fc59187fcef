"""Frozen and trained parameters told apart in a drawing: by colour, and with their bytes."""

import pytest
import torch
from torch import nn

from course_lib.observe.networks.draw import draw
from course_lib.observe.networks.trained import FROZEN, TRAINED


def model():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    net[2].weight.requires_grad_(False)
    return net


def test_boxes_and_the_legend_say_what_is_trained():
    picture = draw(model(), torch.zeros(3, 4), depth=1, trained=True)
    for text in ("frozen: 160 B", "trained: 8 B", "frozen: 64 B", "trained: 8 B of", "frozen: 224 B of"):
        assert text in picture.svg.replace("&#160;", " ").replace("\xa0", " "), text
    assert TRAINED in picture.svg
    assert FROZEN in picture.svg


def test_a_model_that_is_trained_in_full_has_no_grey_box():
    picture = draw(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.zeros(3, 4), depth=1, trained=True)
    assert "frozen: 0 B of parameters" in picture.svg.replace("&#160;", " ").replace("\xa0", " ")


@pytest.mark.parametrize("other", [{"tool": "torchinfo"}, {"placement": {"": 0}}])
def test_it_is_for_torchview_and_without_a_placement(other):
    with pytest.raises(ValueError, match="trained"):
        draw(model(), torch.zeros(3, 4), trained=True, **other)


class TwoBranches(nn.Module):
    """What torchview would draw inside the first branch for ever, because Identity returns the tensor itself."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Identity(), nn.Linear(4, 4))
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        return self.first(x) + self.second(x)


def test_a_module_beside_an_identity_has_a_box_of_its_own():
    picture = draw(TwoBranches(), torch.zeros(3, 4), depth=2)
    assert ">second<" in picture.svg
    assert "Identity" not in picture.svg
