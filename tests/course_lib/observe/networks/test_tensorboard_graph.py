"""The drawing holds what TensorBoard's file holds: modules by name, so a module called twice once, in a circle."""

import re

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from course_lib.models.resnet import BasicBlock
from course_lib.observe.networks.tensorboard_graph import draw_tensorboard


def test_a_block_in_which_relu_runs_twice(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        writer.add_graph(BasicBlock(4, 8, stride=2), torch.zeros(1, 4, 8, 8))
    picture = draw_tensorboard(tmp_path)
    assert (
        picture.alt
        == "TensorBoard's graph of BasicBlock: 9 boxes, each module once however often it is called."
    )
    names = re.findall(r'font-weight="bold"[^>]*>(.*?)</text>', picture.svg)
    assert sorted(names) == sorted(
        ["input", "downsample", "conv1", "bn1", "relu", "conv2", "bn2", "add", "output"]
    )
    assert picture.svg.count('class="edge"') == 10  # of them relu -> conv2 -> bn2 -> add -> relu


def test_a_folder_without_a_graph(tmp_path):
    with pytest.raises(
        ValueError, match=r"holds no graph; write one with SummaryWriter\(folder\)\.add_graph"
    ):
        draw_tensorboard(tmp_path)
