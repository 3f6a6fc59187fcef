"""From torchview's record of a forward pass to a graph of modules and functions, folded where one wishes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torchview import draw_graph
from torchview.computation_node import FunctionNode, ModuleNode, TensorNode

from course_lib.observe.networks.flops_overlay import FlopsOverlay
from course_lib.observe.networks.placement import Placement, size_of
from course_lib.observe.networks.render import PLAIN, Box, Frame, Graph
from course_lib.observe.networks.repeats import fold_repeats
from course_lib.observe.networks.trained import Trained
from course_lib.observe.show.amounts import amount

# Functions that compute nothing: they look at the same numbers in another arrangement.
RESHAPES = frozenset(
    """view view_as reshape transpose permute movedim swapaxes contiguous flatten unflatten squeeze unsqueeze
    expand expand_as getitem select narrow chunk split unbind to type type_as float half bool long clone
    detach""".split()  # noqa: SIM905
)


class ModuleGraph:
    """What ``model(*inputs)`` calls, with modules opened down to ``depth`` and all along the names to ``expand``,
    but not ``close``.

    torchview's record is nested like the calls: a list of functions, tensors, and ``{module: such a list}``.
    The walk goes through it in the order of the calls, so what feeds a function has always been seen before.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple,
        depth: int,
        expand: tuple[str, ...],
        placement: Placement | Trained | FlopsOverlay | None,
        reshapes: bool,
        repeats: bool = False,
        close: tuple[str, ...] = (),
    ) -> None:
        self.model, self.depth, self.expand, self.close = model, depth, expand, close
        self.placement, self.reshapes = placement, reshapes
        self.names = {id(module): name for name, module in model.named_modules()}
        self.written: set[int] = set()  # parameters that stand on a box already
        self.sources: dict[FunctionNode, list[Any]] = {}  # the boxes that a function's result comes from
        self.edges: dict[tuple[Any, Any], None] = {}  # in order, each once
        self.outputs: list[TensorNode] = []

        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        record = draw_graph(model, input_data=list(inputs), depth=1, device=device, mode="eval")
        (calls,) = record.node_hierarchy.values()
        self.inputs = list(record.root_container)
        names = _argument_names(model, inputs, len(self.inputs))
        top = Frame()
        for node, name in zip(self.inputs, names, strict=True):
            top.inside.append(Box(node, name, (f"input  {shape_text(node.tensor_shape)}",)))
        self._visit(calls, top, level=0, prefix="")
        for node in self.outputs:
            top.inside.append(Box(node, "output", (shape_text(node.tensor_shape),)))
            self._connect(self._sources_of(node), node)
        self._prune(top)
        if not repeats:
            self.edges = fold_repeats(top, self.edges)
        self.graph = Graph(top, list(self.edges), placement.legend() if placement else [])

    def _visit(self, calls: list, frame: Frame, level: int, prefix: str) -> None:
        """Draw these calls into ``frame``, which stands for the open module named ``prefix``."""
        for item in calls:
            if isinstance(item, FunctionNode):
                self._draw_function(item, frame, prefix)
            elif isinstance(item, TensorNode):
                self._note_output(item)
            else:
                ((module, inside),) = item.items()
                name = self.names.get(module.compute_unit_id, prefix)
                if any(isinstance(call, dict) for call in inside) and self._opens(name, level):
                    opened = Frame(f"{_below(name, prefix)} · {module.name}")
                    self._visit(inside, opened, level + 1, name)
                    bare = level == 0 or len(opened.inside) == 1  # a frame around one thing says nothing
                    frame.inside += opened.inside if bare else [opened]
                else:
                    self._draw_module(module, inside, frame, name, prefix)

    def _opens(self, name: str, level: int) -> bool:
        if any(_within(name, c) for c in self.close):
            return False
        return level < self.depth or any(_within(name, e) or _within(e, name) for e in self.expand)

    def _draw_module(self, module: ModuleNode, inside: list, frame: Frame, name: str, prefix: str) -> None:
        functions = list(self._functions(inside))
        if not functions:
            return
        if module.name == "Identity":  # nothing is computed: its input goes on
            for function in functions:
                self._draw_function(function, frame, prefix)
            return
        for function in functions:
            self._connect([s for node in function.parents for s in self._sources_of(node)], module)
            self.sources[function] = [module]
        parameters = {}
        if self.names.get(module.compute_unit_id) == name:
            parameters = dict(self.model.get_submodule(name).named_parameters(prefix=name))
        new = {key: p for key, p in parameters.items() if id(p) not in self.written}
        self.written |= set(map(id, parameters.values()))
        shapes = ", ".join(map(shape_text, dict.fromkeys(module.output_shape)))
        title, lines, colours = (
            _below(name, prefix),
            [f"{module.name}  {shapes}" if name else shapes],
            (PLAIN,),
        )
        if self.placement:
            held, colours = self.placement.describe(new, name)
            lines += held
        elif new:
            lines.append(describe_parameters(list(new.values())))
        if len(new) < len(parameters):
            lines.append("shared parameters: counted above")
        frame.inside.append(Box(module, title or module.name, tuple(lines), colours))

    def _draw_function(self, function: FunctionNode, frame: Frame, prefix: str) -> None:
        name = function.name.strip("_")
        sources = list(dict.fromkeys(s for node in function.parents for s in self._sources_of(node)))
        hidden = function.name == "empty-pass" or (name in RESHAPES and not self.reshapes)
        if hidden or not sources:  # without sources, it is made from constants alone
            self.sources[function] = sources
            return
        lines, colours = [], (PLAIN,)
        if self.placement:
            lines, colours = self.placement.describe_function(prefix)
        shapes = ", ".join(map(shape_text, dict.fromkeys(function.output_shape)))
        frame.inside.append(Box(function, name, (shapes, *lines), colours, is_function=True))
        self._connect(sources, function)
        self.sources[function] = [function]

    def _prune(self, frame: Frame) -> None:
        """Leave out functions whose result is not used: ``zeros_like`` takes only the shape of its input."""
        useful = {tail for tail, _ in self.edges}
        while dead := {box.key for box in frame.boxes() if box.is_function} - useful:
            frame.drop(dead)
            self.edges = {edge: None for edge in self.edges if edge[1] not in dead}
            useful = {tail for tail, _ in self.edges}

    def _functions(self, calls: list) -> Iterator[FunctionNode]:
        for item in calls:
            if isinstance(item, FunctionNode):
                yield item
            elif isinstance(item, TensorNode):
                self._note_output(item)
            else:
                for inside in item.values():
                    yield from self._functions(inside)

    def _note_output(self, node: TensorNode) -> None:
        if node.name == "output-tensor" and node.is_leaf() and not node.is_aux:
            self.outputs.append(node)

    def _sources_of(self, tensor: TensorNode) -> list[Any]:
        """The boxes that this tensor comes from: one, or several behind functions that are not drawn."""
        tensor = tensor.main_node
        if tensor.is_root():
            return [tensor] if tensor in self.inputs else []
        return self.sources.get(next(iter(tensor.parents)), [])

    def _connect(self, sources: list[Any], target: Any) -> None:
        self.edges |= {(source, target): None for source in sources if source is not target}


def _argument_names(model: nn.Module, inputs: tuple, count: int) -> list[str]:
    """What ``forward`` calls its tensors; "x" where one argument holds several."""
    names = [
        p.name for p in inspect.signature(model.forward).parameters.values() if p.kind != p.VAR_POSITIONAL
    ]
    tensors = [name for name, x in zip(names, inputs, strict=False) if isinstance(x, torch.Tensor)]
    return tensors if len(tensors) == count else ["x"] * count


def describe_parameters(parameters: list[nn.Parameter]) -> str:
    """``"9,408 parameters, 37.6 kB"``, each counted once."""
    count = sum(p.numel() for p in {id(p): p for p in parameters}.values())
    return f"{count:,} parameters, {amount(size_of(parameters), 'B')}"


def _within(inner: str, outer: str) -> bool:
    return not outer or f"{inner}.".startswith(f"{outer}.")


def _below(name: str, prefix: str) -> str:
    """The name as seen from inside the module ``prefix``."""
    return name.removeprefix(f"{prefix}.") if prefix else name


def shape_text(size: tuple[int, ...]) -> str:
    """``"1×64×56×56"``, as drawings write a shape."""
    return "×".join(map(str, size)) or "scalar"
