"""BERT's layer by boxes: what a frozen Linear frees, and to whom a shared input goes."""

import pytest
import torch

from course_lib.chapters.frozen import Refused
from course_lib.chapters.kept_by_layer import LINEARS, kept_by_boxes, plot_layer
from course_lib.models.bert import BertConfig, BertLayer
from course_lib.observe.ledgers.saved import saved_bytes_by_module


@pytest.fixture(scope="module")
def layer():
    return BertLayer(BertConfig.tiny())


X = torch.zeros(1, 64, 64)


def test_the_boxes_add_up_to_the_layer(layer):
    boxes, whole = kept_by_boxes(layer, X), sum(saved_bytes_by_module(layer, X).values())
    assert 0.97 * whole < sum(boxes.values()) <= whole  # beside a norm's and softmax's statistics


@pytest.mark.parametrize(
    ("frozen", "inputs"),
    [
        (["query"], 0),
        (["attention.output.dense"], 0),
        (["intermediate.dense"], 1),
        (["output.dense"], 4),
        (["query", "key", "value"], 1),
        (["query", "intermediate.dense", "output.dense"], 5),
        (list(LINEARS), 6),
    ],
)
def test_a_frozen_linear_frees_what_no_other_box_keeps(layer, frozen, inputs):
    freed = sum(kept_by_boxes(layer, X).values()) - sum(kept_by_boxes(layer, X, frozen).values())
    assert freed == inputs * X.nbytes
    assert all(p.requires_grad for p in layer.parameters())


def test_a_shared_input_goes_to_the_next_box(layer):
    alt = plot_layer(layer, X, ["query"]).alt
    assert alt.startswith("frozen: 1 of 6 Linears; frees 0.0 MB.")
    assert "query frozen, key 0.2 MB, value –, core " in alt


def test_bytes_are_those_of_all_layers(layer):
    alt = plot_layer(layer, X, ["intermediate.dense"], layers=10_000).alt
    assert f"frees {10_000 * X.nbytes / 1e6:.0f} MB" in alt
    assert plot_layer(layer, X, layers=2).alt.startswith("BERT-base: 2 layers like this one.")


def test_a_name_that_is_no_linear_is_refused(layer):
    with pytest.raises(Refused, match="'gelu' is none of the Linears; these are: query, key"):
        kept_by_boxes(layer, X, ["gelu"])
