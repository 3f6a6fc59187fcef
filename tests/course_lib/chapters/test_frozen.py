"""What a step holds when boxes are frozen: against autograd itself, and the lists that a learner may write."""

from itertools import combinations

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.chapters.frozen import LEAST, Refused, best, held
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


def test_the_best_list_is_the_best_of_all_that_keep_to_the_rule(resnet):
    names, least, tried = best(resnet)
    sizes = held(resnet, images=1).states
    lists = [some for count in range(len(sizes)) for some in combinations(sizes, count)]
    most = (1 - LEAST) * sum(sizes.values())
    allowed = [some for some in lists if sum(sizes[name] for name in some) <= most]
    assert len(allowed) == tried
    totals = {some: held(resnet, some).total for some in allowed}
    assert min(totals, key=totals.__getitem__) == names
    assert totals[names] == least < held(resnet).total


def test_a_list_that_cannot_be_is_refused(resnet):
    with pytest.raises(Refused, match="'relu' is no box with parameters; these are: conv1, bn1"):
        held(resnet, ["relu"])
    with pytest.raises(Refused, match="leave at least one box"):
        held(resnet, ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc"])
