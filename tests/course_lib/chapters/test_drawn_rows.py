"""A chain in rows: all its boxes, as wide as a few of them; what is no chain is refused."""

import re

import pytest
import torch
from torch import nn

from course_lib.chapters.drawn_rows import draw_rows
from course_lib.models.bert import BertConfig, BertSelfAttention
from course_lib.models.resnet import ResNet18


def test_all_boxes_stand_in_rows_and_the_model_stays_in_training():
    resnet = ResNet18(width=8).train()
    picture = draw_rows(resnet, torch.zeros(1, 3, 64, 64))
    assert "x, conv1, bn1, relu, maxpool, layer1, layer2, layer3, layer4, avgpool, fc, output" in picture.alt
    width, height = map(float, re.findall(r'(?:width|height)="([\d.]+)pt"', picture.svg)[:2])
    assert height < width
    assert resnet.training
    assert all(module.training for module in resnet.modules())


def test_what_is_no_chain_is_refused():
    with pytest.raises(ValueError, match="BertSelfAttention is no chain of boxes"):
        draw_rows(BertSelfAttention(BertConfig.tiny()), torch.zeros(1, 4, 64))


def test_a_short_chain_is_one_row():
    assert (
        "input, 0, 1, output" in draw_rows(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.zeros(1, 2)).alt
    )


def test_a_note_is_written_into_its_box():
    picture = draw_rows(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.zeros(1, 2), notes={"0": "frozen"})
    assert picture.svg.count(">frozen<") == 1
    assert picture.alt.endswith("0: frozen.")
