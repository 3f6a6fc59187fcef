"""The backward pass of a stage in two parts: first the gradient of its input, later those of its weights.

Zero-bubble schedules (arXiv:2401.10241) ask for this: the previous stage waits for the gradient of the input, and
nobody waits for those of the weights. A linear layer y = x Wᵀ has two independent products,

    dx = dy W        dW = dyᵀ x

and both need dy. So the first part runs autograd along the *path* from the outputs to the inputs only, and on the way
keeps dy wherever a weight joins the path. The second part starts at these places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge


class SplitBackward:
    """Runs the first part at once; ``weights()`` runs the second. Gradients are added to ``.grad``, as ever.

    Args:
        outputs: of one microbatch, as edges of the graph.
        gradients: of the outputs.
        inputs: tensors without a history whose gradients are needed first.
    """

    def __init__(
        self, outputs: Sequence[GradientEdge], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> None:
        self.outputs = outputs  # they keep the graph alive
        targets = {get_gradient_edge(tensor).node for tensor in inputs}
        path, leads_to = explore([edge.node for edge in outputs], targets)
        # Places where weights join the path, each with the nodes of these weights, and dy, which is filled in below.
        self.places = {node: leads_to[node] for node in path if leads_to[node]}
        self.received: dict[Node, Sequence[Tensor | None]] = {}
        hooks = [node.register_prehook(self._keeper(node)) for node in self.places]
        along = [
            (edge, gradient) for edge, gradient in zip(outputs, gradients, strict=True) if edge.node in path
        ]
        if along:
            torch.autograd.backward(*zip(*along, strict=True), inputs=list(inputs), retain_graph=True)
        for hook in hooks:
            hook.remove()
        for edge, gradient in zip(outputs, gradients, strict=True):
            if edge.node not in path and leads_to[edge.node]:  # an output that depends on weights alone
                self._join_output(edge, gradient, leads_to[edge.node])
        self.groups = joined(self.places)
        # From one place of a weight to the next, the second part walks along the path again.
        self.walks_path = any(len(places) > 1 for places, _ in self.groups)
        if not self.walks_path:
            forget_saved_tensors(path.keys() - self.places.keys())

    def _keeper(self, node: Node) -> Any:
        def keep(gradients: Sequence[Tensor | None]) -> None:
            self.received[node] = gradients

        return keep

    def _join_output(self, edge: GradientEdge, gradient: Tensor, weights: frozenset[Node]) -> None:
        gradients = list(self.received.get(edge.node, ()))
        gradients += [None] * (edge.output_nr + 1 - len(gradients))
        known = gradients[edge.output_nr]
        gradients[edge.output_nr] = gradient if known is None else known + gradient
        self.places[edge.node], self.received[edge.node] = weights, gradients

    def weights(self) -> None:
        """The second part: the gradients of all weights that are no inputs."""
        for places, weights in self.groups:
            starts = [
                (GradientEdge(node, number), gradient)
                for node in places
                for number, gradient in enumerate(self.received.get(node, ()))
                if gradient is not None
            ]
            # A weight that joins at several places gets a gradient from each. Autograd would also pass what it
            # computes at one of them on to the next, whose gradient is complete already: it is put back there.
            hooks = [
                node.register_prehook(lambda _, kept=self.received[node]: tuple(kept))
                for node in places
                if len(places) > 1 and node in self.received
            ]
            if starts:
                edges, gradients = zip(*starts, strict=True)
                inputs = [node.variable for node in weights]
                torch.autograd.backward(edges, gradients, inputs=inputs, retain_graph=self.walks_path)
            for hook in hooks:
                hook.remove()
        self.outputs, self.places, self.received, self.groups = (), {}, {}, []


def explore(
    roots: Iterable[Node], targets: set[Node]
) -> tuple[dict[Node, None], dict[Node, frozenset[Node]]]:
    """The nodes on a path from the roots to the targets; for each node the weights that it leads to beside the path."""
    path: dict[Node, None] = {}  # in the order in which they are found, the same on all tensor-parallel ranks
    leads_to: dict[Node, frozenset[Node]] = {}
    todo = [(root, False) for root in roots]
    while todo:
        node, children_done = todo.pop()
        if node in leads_to:
            continue
        children = [child for child, _ in node.next_functions if child is not None]
        if not children_done:
            todo.append((node, True))
            todo += [(child, False) for child in children if child not in leads_to]
            continue
        weights: set[Node] = set()
        for child in children:
            if child in path:
                path[node] = None
            else:
                weights |= leads_to[child]
        if node in targets:
            path[node] = None
        elif not children and hasattr(node, "variable"):  # where a gradient is added to a weight's .grad
            weights.add(node)
        leads_to[node] = frozenset(weights)
    return path, leads_to


def joined(places: dict[Node, frozenset[Node]]) -> list[tuple[list[Node], set[Node]]]:
    """Places and their weights in groups, such that a weight is in one group only."""
    group_of: dict[Node, tuple[list[Node], set[Node]]] = {}
    for node, weights in places.items():
        group: tuple[list[Node], set[Node]] = ([node], set(weights))
        for other in {id(group_of[w]): group_of[w] for w in weights if w in group_of}.values():
            group[0].extend(other[0])
            group[1].update(other[1])
        group_of |= dict.fromkeys(group[1], group)
    return list({id(group): group for group in group_of.values()}.values())


def forget_saved_tensors(nodes: Iterable[Node]) -> None:
    """Free what these nodes saved. Autograd frees it after a backward, or keeps it for all nodes of the graph."""
    for node in nodes:
        for name in saved_names(type(node)):
            saved = getattr(node, name)
            for tensor in saved if isinstance(saved, tuple) else (saved,):
                with suppress(RuntimeError):  # None, or something else looks after it, such as recomputation
                    tensor.register_hooks(forget, remember_nothing)


@cache
def saved_names(kind: type) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved_")]


def forget(_: Tensor) -> None:
    return None


def remember_nothing(_: None) -> Tensor:
    raise RuntimeError("what this operation saved was freed after the gradient of its input")
