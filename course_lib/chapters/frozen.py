"""What a step of training holds when some boxes of a network are frozen (chapter 01)."""

from __future__ import annotations

import copy
from collections.abc import Collection
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.observe.ledgers.saved import saved_bytes_by_module
from course_lib.observe.networks.placement import size_of

IMAGES, LEAST = 32, 0.75  # a step's images, and the part of the parameters that must still be trained


class Refused(ValueError):  # noqa: N818 - it is read as a sentence
    """A list that cannot be; a notebook shows its one sentence, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Held(NamedTuple):
    """Bytes by box: parameters with gradients and Adam's states, and activations; and the part that is trained."""

    states: dict[str, int]
    activations: dict[str, int]
    trained: float

    @property
    def total(self) -> int:
        return sum(self.states.values()) + sum(self.activations.values())


class _OnImages(nn.Module):
    """Takes whole numbers, as of pixels, so that nothing asks for the images' gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model(pixels.float())


def held(model: nn.Module, frozen: Collection[str] = (), images: int = IMAGES) -> Held:
    """What a step with Adam holds, by box; ``frozen`` boxes have no gradients and no states. The model stays as it is.

    Raises:
        Refused: a name is none of the boxes with parameters, or nothing is left to train.
    """
    boxes = {name: size for name, box in model.named_children() if (size := size_of(box.parameters()))}
    if wrong := [name for name in frozen if name not in boxes]:
        raise Refused(f"{wrong[0]!r} is no box with parameters; these are: {', '.join(boxes)}")
    if set(frozen) == set(boxes):
        raise Refused("everything is frozen: leave at least one box to train")
    model = copy.deepcopy(model).train()
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    pixels = torch.zeros(images, 3, 224, 224, dtype=torch.uint8)
    kept = saved_bytes_by_module(_OnImages(model), pixels, depth=2)
    states = {name: size * (1 if name in frozen else 4) for name, size in boxes.items()}
    trained = 1 - sum(boxes[name] for name in set(frozen)) / sum(boxes.values())
    return Held(states, {name.removeprefix("model."): size for name, size in kept.items()}, trained)


def best(model: nn.Module) -> tuple[tuple[str, ...], int, int]:
    """The list with which a step holds least while enough is trained, its bytes, and how many lists keep the rule.

    To freeze one box more never holds more, so only lists are measured to which none can be added.
    """
    boxes = {name: size for name, box in model.named_children() if (size := size_of(box.parameters()))}
    lists = [
        set(names)
        for count in range(len(boxes))
        for names in combinations(boxes, count)
        if sum(boxes[name] for name in names) <= (1 - LEAST) * sum(boxes.values())
    ]
    longest = [names for names in lists if not any(names < others for others in lists)]
    totals = {tuple(name for name in boxes if name in names): held(model, names).total for names in longest}
    least = min(totals, key=totals.__getitem__)
    return least, totals[least], len(lists)
