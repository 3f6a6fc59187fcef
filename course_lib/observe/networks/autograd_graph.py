"""torchviz's picture of the graph that backward will walk, in the course's own style, with what each step keeps."""

from __future__ import annotations

import re
import warnings
from inspect import signature
from typing import Any

import torch
from torch import nn

from course_lib.observe.networks.render import PALETTE, PLAIN, Box, Frame, Graph
from course_lib.one_device.nested_tensors import tensors_in

# torchviz tells by colour what a node is; what it leaves without one is a step of backward.
_KINDS = {
    "lightblue": (PALETTE[4], "a leaf: backward adds to its .grad"),
    "orange": (PALETTE[1], "a tensor saved for backward"),
    "darkolivegreen1": (PALETTE[6], "the result: backward starts here"),
    "darkolivegreen3": (PALETTE[5], "the tensor of which the result is a view"),
}
_NODE = re.compile(r'\s*(\d+) \[label="?(.*?)"?(?: fillcolor=(\w+))?\]\s*', re.DOTALL)
_EDGE = re.compile(r"\s*(\d+) -> (\d+)\b.*", re.DOTALL)


def autograd_graph(model: nn.Module, inputs: tuple) -> Graph:
    """The functions behind ``model(*inputs)`` with the shapes that they keep, and the parameters and inputs by name.

    Raises:
        ValueError: no output needs a gradient.
    """
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore", DeprecationWarning)  # torchviz compares versions with distutils
        from torchviz import make_dot

        outputs = [t for t in tensors_in(model(*inputs)) if t.requires_grad]
        if not outputs:
            raise ValueError(f"no output of {type(model).__name__} needs a gradient: no autograd graph")
        steps = _steps(outputs)  # held, so that torchviz meets the same objects and their ids
        called = signature(model.forward).bind(*inputs).arguments | dict(model.named_parameters())
        dot = make_dot(tuple(outputs), params={name: x for name, x in called.items() if torch.is_tensor(x)})
    top, edges, found = Frame(), [], {}
    for entry in dot.body:
        if edge := _EDGE.fullmatch(entry):
            edges.append(edge.groups())
        elif node := _NODE.fullmatch(entry):
            key, text, kind = node.groups()
            name, _, shape = (part.strip() for part in text.replace("\\n", "\n").partition("\n"))
            colour, meaning = _KINDS.get(kind, (PLAIN, ""))
            if meaning:
                found[colour] = meaning
            lines = (shape.strip("()").replace(", ", "×") or "scalar",) if kind else _kept(steps.get(key))
            top.inside.append(Box(key, name or _nameless(kind), lines, (colour,), is_function=kind is None))
    return Graph(top, edges, list(found.items()))


def _steps(outputs: list[torch.Tensor]) -> dict[str, Any]:
    """The steps of backward, each by its id as torchviz writes it."""
    steps, todo = {}, [t.grad_fn for t in outputs]
    while todo:
        step = todo.pop()
        if step is not None and str(id(step)) not in steps:
            steps[str(id(step))] = step
            todo += [behind for behind, _ in step.next_functions]
    return steps


def _kept(step: Any) -> tuple[str, ...]:
    """A line for each tensor that a step keeps for itself, with PyTorch's name of it; numbers are left out."""
    kept = {name[7:]: getattr(step, name) for name in dir(step) if name.startswith("_saved_")}
    tensors = {name: t for name, t in kept.items() if torch.is_tensor(t) and t.dim()}
    return tuple(f"keeps {name} {'×'.join(map(str, t.shape))}" for name, t in tensors.items())


def _nameless(kind: str | None) -> str:
    return "input" if kind == "lightblue" else "result" if kind == "darkolivegreen1" else "tensor"
