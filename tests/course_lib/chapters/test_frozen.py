"""What a step holds when boxes are frozen: against autograd itself, and the lists that a learner may write."""

from itertools import combinations

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.chapters.frozen import IMAGES, LEAST, Refused, best, fitting, held, plot_frozen
from course_lib.models.resnet import ResNet18


@pytest.fixture(scope="module")
def resnet():
    return ResNet18(width=8)


def kept_by_autograd(model: nn.Module, frozen: tuple[str, ...]) -> int:
    """Bytes that a real forward on one image keeps."""
    seen = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept = {}

    def pack(tensor):
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in seen:
            kept[memory.data_ptr()] = memory.nbytes()
        return tensor

    model.train().requires_grad_(True)
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        _held = model(torch.zeros(1, 3, 224, 224))
    return sum(kept.values())


@pytest.mark.parametrize("frozen", [(), ("layer4",), ("layer1", "layer2"), ("conv1", "bn1", "layer1")])
def test_activations_are_those_of_autograd(frozen):
    model = ResNet18(width=8)
    assert sum(held(model, frozen, images=1).activations.values()) == kept_by_autograd(model, frozen)


def test_a_frozen_box_holds_its_parameters_alone(resnet):
    every, one = held(resnet, images=1), held(resnet, ["fc"], images=1)
    assert one.states == every.states | {"fc": every.states["fc"] // 4}
    assert every.trained == 1
    assert one.trained == 1 - every.states["fc"] / sum(every.states.values())
    assert all(p.requires_grad for p in resnet.parameters())


def test_as_many_images_fit_as_the_step_that_trains_all_has_room_for(resnet):
    frozen = ["conv1", "bn1", "layer1"]
    room, images = held(resnet).total, fitting(resnet, frozen)
    assert held(resnet, frozen, images).total <= room < held(resnet, frozen, images + 1).total
    assert fitting(resnet, []) == IMAGES


def test_the_best_list_is_the_best_of_all_that_keep_to_the_rule(resnet):
    names, images, tried = best(resnet)
    sizes = held(resnet, images=1).states
    lists = [some for count in range(len(sizes)) for some in combinations(sizes, count)]
    most = (1 - LEAST) * sum(sizes.values())
    allowed = [some for some in lists if sum(sizes[name] for name in some) <= most]
    assert len(allowed) == tried
    assert names in allowed
    totals = {
        some: held(resnet, some, images).total for some in allowed
    }  # where it fits, all others do not fit better
    assert min(totals, key=totals.__getitem__) == names
    assert totals[names] <= held(resnet).total


def test_the_picture_says_how_many_images_fit_if_the_list_keeps_to_the_rule(resnet):
    few, all_of_it = plot_frozen(resnet, ["layer4"]).alt, plot_frozen(resnet, []).alt
    assert "less than 75 % 46;" in few
    assert few.endswith("nothing frozen 32, less than 75 % 0.")
    assert all_of_it.endswith("nothing frozen 32, your list 32.")


def test_a_list_that_cannot_be_is_refused(resnet):
    with pytest.raises(Refused, match="'relu' is no box with parameters; these are: conv1, bn1"):
        held(resnet, ["relu"])
    with pytest.raises(Refused, match="leave at least one box"):
        held(resnet, ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc"])
