"""torchviz's picture of the graph that backward will walk, in the course's own style."""

from __future__ import annotations

import re
import warnings
from inspect import signature

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
    """The functions behind ``model(*inputs)``, the parameters and inputs they lead to, and their names.

    Raises:
        ValueError: no output needs a gradient.
    """
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore", DeprecationWarning)  # torchviz compares versions with distutils
        from torchviz import make_dot

        outputs = [t for t in tensors_in(model(*inputs)) if t.requires_grad]
        if not outputs:
            raise ValueError(f"no output of {type(model).__name__} needs a gradient: no autograd graph")
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
            lines = (shape.strip("()").replace(", ", "×") or "scalar",) if kind else ()
            top.inside.append(Box(key, name or _nameless(kind), lines, (colour,), is_function=kind is None))
    return Graph(top, edges, list(found.items()))


def _nameless(kind: str | None) -> str:
    return "input" if kind == "lightblue" else "result" if kind == "darkolivegreen1" else "tensor"
