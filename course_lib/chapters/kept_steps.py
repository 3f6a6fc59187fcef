"""The steps of backward that keep a tensor, each with its bytes: what is left of torchviz's drawing (chapter 01)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from course_lib.observe.networks.draw import picture_of
from course_lib.observe.networks.module_graph import shape_text
from course_lib.observe.networks.render import PALETTE, PLAIN, Box, Frame, Graph
from course_lib.observe.show.amounts import amount
from course_lib.observe.show.shown import Shown
from simulator.plots.picture import Picture

# What attention's steps are called in PyTorch, and what PyTorch calls the tensors that they keep.
STEPS = {
    "BmmBackward0": "matrix product",
    "SoftmaxBackward0": "softmax",
    "SafeSoftmaxBackward0": "softmax",
    "MulBackward0": "dropout",
    "ScaledDotProductFlashAttentionForCpuBackward0": "all in one step",
}
TENSORS = {
    "query": "q",
    "key": "k",
    "value": "v",
    "self": "a factor",
    "mat2": "a factor",
    "other": "its mask",
    "output": "its result",
    "result": "its result",
    "logsumexp": "a number a row",
}


def draw_kept(model: nn.Module, *inputs: Tensor | float) -> Picture | Shown:
    """The steps that keep tensors, from the inputs to the result; those that keep a square table are coloured.

    Raises:
        ValueError: no step keeps anything.
    """
    result = model(*(x.detach().requires_grad_() if isinstance(x, Tensor) else x for x in inputs))
    boxes: dict[Any, Box] = {}
    edges: list[tuple[Any, Any]] = []
    total = tables = 0
    todo, seen = [(result.grad_fn, None)], set()
    while todo:
        step, below = todo.pop(0)
        kept = _kept(step)
        if kept and step not in boxes:
            square = [t for t in kept.values() if t.dim() > 2 and t.shape[-1] == t.shape[-2]]
            tables, total = tables + len(square), total + sum(t.nbytes for t in kept.values())
            lines = (
                f"{TENSORS.get(name, name)} {shape_text(t.squeeze(0).shape)}: {amount(t.nbytes, 'B')}"
                for name, t in kept.items()
            )
            name = STEPS.get(step.name(), step.name())
            colour = PALETTE[1] if square else PLAIN
            boxes[step] = Box(step, name, tuple(lines), (colour,), is_function=True)
        if kept and below is not None:
            edges.append((step, below))
        below = step if kept else below
        for behind, _ in step.next_functions:
            if behind is not None and (behind, below) not in seen:
                seen.add((behind, below))
                todo.append((behind, below))
    if not boxes:
        raise ValueError(f"{type(model).__name__} keeps nothing for backward")
    legend = [(PALETTE[1], "keeps a table")] if tables else []
    said = "; ".join(
        ", ".join([box.name, *(line for line in box.lines if ": " in line)])
        for box in reversed(boxes.values())
    )
    alt = f"Steps of backward that keep tensors, {amount(total, 'B')} with {tables} tables: {said}."
    return picture_of(Graph(Frame(inside=list(reversed(boxes.values()))), edges, legend), alt)


def _kept(step: Any) -> dict[str, Tensor]:
    """The tensors that a step keeps, by PyTorch's name of each; numbers are left out."""
    kept = {
        name.removeprefix("_saved_"): getattr(step, name) for name in dir(step) if name.startswith("_saved_")
    }
    order = list(TENSORS)
    return {
        name: t
        for name, t in sorted(kept.items(), key=lambda one: order.index(one[0]) if one[0] in order else 99)
        if torch.is_tensor(t) and t.dim()
    }
