"""Attention in steps keeps one table more than the call, and the picture has the bytes of the ledger."""

import copy

import pytest
import torch
from torch import nn

from course_lib.chapters.kept_by_attention import kept_by, plot_attention
from course_lib.models.bert import BertConfig, BertCore, BertLayer
from course_lib.observe.networks.draw import draw

HEADS, SEQ, SIZE = 12, 512, 64


class Steps(nn.Module):
    def __init__(self, size=SIZE):
        super().__init__()
        self.size = size

    def forward(self, q, k, v, mask=None):
        return torch.softmax(q @ k.transpose(-1, -2) / self.size**0.5, dim=-1) @ v


@pytest.fixture
def qkv():
    return [torch.zeros(1, HEADS, SEQ, SIZE) for _ in range(3)]


def test_the_steps_keep_one_table_and_the_call_its_result(qkv):
    one = qkv[0].nbytes
    assert kept_by(Steps(), *qkv) == ([one] * 3, HEADS * SEQ**2 * 4)
    assert kept_by(BertCore(0.0), *qkv) == ([one] * 3, one)


def test_the_picture_says_what_each_box_keeps(qkv):
    alt = plot_attention(Steps(), BertCore(0.0), *qkv).alt
    assert (
        "in three steps: keeps 17.3 MB (q @ kᵀ / 8 q, k: 3.1 MB, softmax shares: 12.6 MB, @ v v: 1.6 MB)"
        in alt
    )
    assert "as one call: keeps 6.3 MB (q, k, v 4.7 MB, its result 1.6 MB)" in alt


def test_the_layer_is_drawn_alike_with_either():
    layer = BertLayer(BertConfig.tiny()).attention.self
    steps = copy.deepcopy(layer)
    steps.add_module("core", Steps(size=16))
    x = torch.randn(1, 64, 64)
    assert torch.allclose(layer(x), steps(x), atol=1e-5)
    assert draw(layer, x).alt == draw(steps, x).alt
