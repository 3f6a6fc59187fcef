"""A model's modules as a tree, and what each of them adds to a training step: the ledgers, module by module."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from course_lib.observe.ledgers.flops import flops_by_module
from course_lib.observe.ledgers.module_calls import with_containers
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.observe.networks.module_graph import shape_text
from course_lib.observe.networks.placement import size_of
from course_lib.one_device.nested_tensors import map_tensors, tensors_in

OWN = "in no submodule"


class Cost(NamedTuple):
    """What a module adds to one training step."""

    parameters: int  # bytes, each parameter counted once
    saved: int  # bytes of activations that are kept from forward until backward
    forward: int  # FLOPs of matrix products and convolutions
    backward: int  # the same


@dataclass
class TreeModule:
    """One module of the tree, with all modules inside it."""

    name: str  # dotted; "" is the model
    kind: str  # its class
    shape: str  # of its result, "1×64×56×56"; empty for one that is not called
    cost: Cost  # the sum of those inside, if there are any
    parameters: dict[str, nn.Parameter]  # those that count here or inside, by their dotted names
    shared: bool = False  # whether some of its parameters count in a module before it
    inside: list[TreeModule] = field(default_factory=list)  # in the order in which ``__init__`` made them

    def add_own(self) -> None:
        """What no submodule has (functions that ``forward`` calls, parameters) becomes one more, named ``own``."""
        parts = zip(self.cost, *(module.cost for module in self.inside), strict=True)
        rest = [whole - sum(inner) for whole, *inner in parts]
        if self.inside and max(rest) > 0:
            theirs = {key for module in self.inside for key in module.parameters}
            held = {key: p for key, p in self.parameters.items() if key not in theirs}
            own = Cost(*(max(0, value) for value in rest))
            self.inside.append(TreeModule(f"{self.name}.own".strip("."), OWN, "", own, held))


def module_tree(model: nn.Module, *inputs: Any) -> TreeModule:
    """The modules of ``model``, and what each of them adds to a step on ``inputs``.

    Nothing is computed, and the model stays as it is. The numbers are those of ``flops_by_module``, ``saved_tensors``
    and ``size_of``. A parameter counts where it is found first, and a saved tensor in the module that saves it first.
    If a module is called by another one than that which holds it, its FLOPs count in both.

    Args:
        model: in the mode (training or evaluation) that is to be measured.
        inputs: what it takes; those of floating point get a gradient for what is saved, as ``saved_tensors`` says.
    """
    flops, shapes = flops_by_module(model, *inputs), _shapes(model, inputs)
    saved = dict.fromkeys(flops, 0)
    for tensor in saved_tensors(model, *inputs):
        for name in with_containers(tensor.saved_in):
            saved[name] += tensor.bytes
    counted = {id(parameter): name for name, parameter in model.named_parameters()}  # the name that counts
    tree: dict[str, TreeModule] = {}
    for name, module in model.named_modules():
        held = dict(module.named_parameters(prefix=name, remove_duplicate=False))
        here = {key: p for key, p in held.items() if counted[id(p)] == key}
        count = flops[name]
        cost = Cost(size_of(here.values()), saved[name], count.forward, count.backward)
        shared = any(counted[id(p)] not in held for p in held.values())
        tree[name] = TreeModule(name, type(module).__name__, shapes.get(name, ""), cost, here, shared)
        if name:
            tree[name.rpartition(".")[0]].inside.append(tree[name])
    for module in tree.values():
        module.add_own()
    return tree[""]


def _shapes(model: nn.Module, inputs: tuple) -> dict[str, str]:
    """Name -> the shapes of what the module returns; several calls may return several."""
    tensors = (*model.parameters(), *model.buffers())  # on meta the copy has none of their data
    model = copy.deepcopy(model, {id(t): t.detach().to("meta") for t in tensors})
    found: dict[str, dict[str, None]] = {}

    def note(name: str, result: Any) -> None:
        found.setdefault(name, {}).update((shape_text(t.shape), None) for t in tensors_in(result))

    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, __, result, name=name: note(name, result))
    with torch.no_grad():
        model(*map_tensors(lambda t: t.detach().to("meta"), inputs))
    return {name: ", ".join(shapes) for name, shapes in found.items()}
