"""Which module an operation belongs to, in forward and in backward.

Autograd numbers its nodes as it makes them. So all nodes that a module's forward has made have numbers between the one
at which the module was entered and the one at which it was left, and a node of the backward names its module.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from torch import nn


class ModuleCalls:
    """Listens, inside a ``with``, to the calls of ``model``'s modules. ``""`` is the model itself."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.running: list[str] = []  # modules whose forward is under way, innermost last
        self.starts: list[int] = []  # number of the next node when ``self.inside`` changed
        self.inside: list[frozenset[str]] = []  # the modules under way from there on
        self.owners = {id(p): name.rpartition(".")[0] for name, p in model.named_parameters()}
        self.handles = ExitStack()

    def __enter__(self) -> ModuleCalls:
        for name, module in self.model.named_modules():
            before = module.register_forward_pre_hook(lambda *_, name=name: self._change(name))
            after = module.register_forward_hook(lambda *_: self._change(None), always_call=True)
            self.handles.callback(before.remove)
            self.handles.callback(after.remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self.handles.close()

    def _change(self, entered: str | None) -> None:
        if entered is None:
            self.running.pop()
        else:
            self.running.append(entered)
        if not self.in_backward():
            self.starts.append(torch._C._autograd._get_sequence_nr())
            self.inside.append(self._under_way())

    @staticmethod
    def in_backward() -> bool:
        """Whether autograd walks the graph now; a forward that is repeated there counts, too."""
        return torch._C._current_graph_task_id() != -1

    def around(self) -> frozenset[str]:
        """The modules that the operation which runs now belongs to."""
        if self.running or not self.in_backward():
            return self._under_way()
        node = torch._C._current_autograd_node()
        return frozenset() if node is None else self.of(node)

    def of(self, node: torch.autograd.graph.Node) -> frozenset[str]:
        """The modules in whose forward a node was made; for the node that keeps a parameter's gradient, its owners."""
        if (variable := getattr(node, "variable", None)) is not None:
            owner = self.owners.get(id(variable))
            return frozenset() if owner is None else with_containers(owner)
        place = bisect_right(self.starts, node._sequence_nr()) - 1
        return self.inside[place] if place >= 0 else frozenset()

    def _under_way(self) -> frozenset[str]:
        return frozenset().union(*map(with_containers, self.running))


@cache
def with_containers(name: str) -> frozenset[str]:
    """A module's name and those of all that it is in, called or not: ``"layer.0"`` is in ``"layer"`` and ``""``."""
    parts = name.split(".") if name else []
    return frozenset({"", *(".".join(parts[: i + 1]) for i in range(len(parts)))})
