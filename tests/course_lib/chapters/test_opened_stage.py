"""layer1 opened: nine boxes keep a tensor of one size, and add up to what the ledger says of the stage."""

import torch

from course_lib.chapters.opened_stage import BOXES, RESULT, STAGE, kept_in_stage, plot_opened
from course_lib.models.resnet import ResNet18
from course_lib.observe.ledgers.saved import saved_bytes_by_module, saved_tensors

IMAGES = 2


def test_the_boxes_add_up_to_the_stage():
    resnet = ResNet18(width=8)
    kept = kept_in_stage(resnet, IMAGES)
    whole = saved_bytes_by_module(resnet, torch.zeros(IMAGES, 3, 224, 224))["layer1"]
    assert sum(map(sum, kept)) == whole
    tensor = IMAGES * 8 * 56 * 56 * 4
    large = [[size // tensor for size in row] for row in kept]  # beside statistics of a few numbers
    assert large == [[1, 1, 1, 0, 1, 0, 1], [0, 1, 1, 0, 1, 0, 1]]


def test_frozen_or_not_makes_no_difference():
    resnet = ResNet18(width=8)
    before = kept_in_stage(resnet, IMAGES)
    resnet.layer1.requires_grad_(False)
    assert kept_in_stage(resnet, IMAGES) == before
    assert not any(p.requires_grad for p in resnet.layer1.parameters())


def test_only_relu_keeps_its_result():
    kept = [
        t for t in saved_tensors(ResNet18(width=8), torch.zeros(IMAGES, 3, 224, 224)) if len(t.shape) == 4
    ]
    inside = [t for t in kept if t.saved_in.startswith(STAGE)]
    assert len(inside) == 9
    assert all((t.made_in == t.saved_in) == t.saved_in.endswith(RESULT) for t in inside)


def test_the_picture_says_what_each_box_keeps():
    alt = plot_opened(ResNet18(width=8), IMAGES).alt
    assert alt.count("its input 0.2 MB") == 5
    assert alt.count("its result 0.2 MB") == 4
    assert alt.count("conv,") == 3
    assert len(BOXES) == 7
