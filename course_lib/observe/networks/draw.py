"""Draw a network, without touching it: its modules and tensors, its autograd graph, or a table of its sizes.

torchview records what a forward pass calls. Here its record is folded to the depth that one wants to see, and
can be coloured by who holds which part: rank, stage or shard, with the bytes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import torch
from torch import nn

from course_lib.observe.networks.autograd_graph import autograd_graph
from course_lib.observe.networks.flops_overlay import FlopsOverlay
from course_lib.observe.networks.interactive import interactive
from course_lib.observe.networks.module_graph import ModuleGraph, describe_parameters
from course_lib.observe.networks.placement import Placement
from course_lib.observe.networks.render import Graph
from course_lib.observe.networks.trained import Trained
from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table
from simulator.plots.picture import Picture

TOOLS = ("torchview", "torchviz", "torchinfo", "torchvista")
MOST_BOXES = 300  # more cannot be read
FAILURES = (RuntimeError, TypeError, IndexError, AttributeError)  # what a model raises on wrong inputs


def draw(
    model: nn.Module,
    *inputs: Any,
    tool: str = "torchview",
    depth: int = 3,
    expand: str | Iterable[str] = (),
    close: str | Iterable[str] = (),
    placement: Mapping[str, int | Iterable[int]] | None = None,
    label: str = "rank",
    trained: bool = False,
    overlay: str | None = None,
    reshapes: bool = False,
    repeats: bool = False,
) -> Picture | Shown:
    """A picture of ``model`` run on ``inputs``, or a table of its layers.

    The model is copied, and the copy is run, without the hooks of the original: parameters, gradients, buffers,
    mode, device and the random state stay as they are.

    Args:
        model: any module that can be copied; of ``DistributedDataParallel`` draw its ``.module``.
        inputs: what ``model(*inputs)`` takes, on the model's device.
        tool: ``"torchview"`` draws modules and functions as they are called, in evaluation mode;
            ``"torchviz"`` the autograd graph that backward will walk: give it a small piece of a model;
            ``"torchinfo"`` returns a table of layers, shapes and parameters; ``"torchvista"`` draws modules that open
            with a click, in a notebook that is running.
        depth: how many levels of submodules are opened, for all but torchviz.
        expand: names of modules that torchview opens to the bottom: ``"encoder.layer.0"``.
        close: names of modules that torchview keeps as one box each, whatever ``depth`` says.
        placement: who holds which modules, for torchview: names and the rank that holds them, or the ranks
            that hold equal shards. A longer name goes before a shorter one: ``{"": 0, "fc": {0, 1}}``.
        label: what the numbers of ``placement`` are: ``"rank"``, ``"stage"`` or ``"shard"``.
        trained: colour what is trained and what is frozen (``requires_grad``), for torchview, without a placement.
        overlay: ``"flops"`` writes on every module of torchview what it computes in a step, forward and backward, and
            shades it by its part of the whole; not beside a placement or ``trained``.
        reshapes: draw functions that only rearrange a tensor (``view``, ``transpose``) too.
        repeats: draw every one of several modules in a row that are alike; by default three or more are drawn once,
            with their number.

    Returns:
        A ``Picture``; or text, for torchinfo and where no Graphviz is installed; or a page in a frame, for torchvista.

    Raises:
        ValueError: an unknown tool or module name, a model that cannot be copied or run on these inputs, or
            a graph too large to read.
    """
    if tool not in TOOLS:
        raise ValueError(f"tool must be one of {', '.join(TOOLS)}, not {tool!r}")
    if depth < 0:
        raise ValueError(f"depth must be 0 or more, not {depth}")
    expand = (expand,) if isinstance(expand, str) else tuple(expand)
    close = (close,) if isinstance(close, str) else tuple(close)
    name = type(model).__name__
    check_names(model, (*expand, *close, *(placement or ())))
    if tool != "torchview" and (expand or close or placement or trained or overlay):
        raise ValueError(
            f"expand, close, placement, trained and overlay are for torchview; {tool} cannot draw them"
        )
    if overlay not in (None, "flops"):
        raise ValueError(f'overlay must be "flops" or None, not {overlay!r}')
    if bool(placement) + trained + bool(overlay) > 1:
        raise ValueError(
            "a box has one set of colours: give placement, trained or overlay, and not two of them"
        )

    spare, inputs = _copy(model), tuple(map(_detached, inputs))
    holders: Placement | Trained | FlopsOverlay | None = (
        Placement(spare, placement, label) if placement else Trained(spare) if trained else None
    )
    with torch.random.fork_rng(sorted({p.device.index for p in spare.parameters() if p.is_cuda})):
        try:
            if overlay:
                holders = FlopsOverlay(spare.eval(), inputs)
            if tool == "torchinfo":
                return _layers(spare, inputs, depth)
            if tool == "torchvista":
                return interactive(spare.eval(), inputs, depth)
            if tool == "torchviz":
                graph, what = autograd_graph(spare, inputs), f"Autograd graph of {name}"
            else:
                graph = ModuleGraph(spare, inputs, depth, expand, holders, reshapes, repeats, close).graph
                what = f"Network graph of {name}, opened to depth {depth}"
        except FAILURES as error:
            raise not_run(model, inputs, error) from error
    boxes = len(list(graph.frame.boxes()))
    if boxes > MOST_BOXES:
        raise ValueError(
            f"{boxes} boxes cannot be read; the most is {MOST_BOXES}: choose a smaller depth or part"
        )
    sizes = describe_parameters(list(spare.parameters()))
    alt = f"{what}: {boxes} boxes; {sizes}"
    if holders:
        alt += "; " + "; ".join(meaning for _, meaning in holders.legend())
    return picture_of(graph, f"{alt}.")


def picture_of(graph: Graph, alt: str) -> Picture | Shown:
    """The graph drawn, or as text where there is no Graphviz; ``alt`` says what is in it."""
    svg = graph.to_svg()
    if svg is not None:
        return Picture(svg, alt)
    text = f"{alt}\n{graph.to_text()}"
    return Shown(text, f"<pre>{escape(text)}</pre>")


def check_names(model: nn.Module, wanted: Iterable[str]) -> None:
    """Raise a ``ValueError`` if ``model`` has no submodule of one of these names."""
    names = {name for name, _ in model.named_modules(remove_duplicate=False)}
    for name in wanted:
        if name not in names:
            raise ValueError(f"{type(model).__name__} has no submodule {name!r}; it has {_some(names)}")


def not_run(model: nn.Module, inputs: tuple, error: Exception) -> ValueError:
    """What to raise when the model cannot be run on these inputs."""
    shapes = ", ".join(str(tuple(x.shape)) if isinstance(x, torch.Tensor) else repr(x) for x in inputs)
    cause = error.__cause__ or error  # torchview wraps what the model raised
    return ValueError(f"{type(model).__name__} could not be run on inputs {shapes or '(none)'}: {cause}")


def _some(names: Iterable[str]) -> str:
    shown = sorted(filter(None, names), key=lambda name: (name.count("."), name))
    return ", ".join(shown[:12]) + (", …" if len(shown) > 12 else "") or "none"


def _copy(model: nn.Module) -> nn.Module:
    try:
        spare = copy.deepcopy(model)
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} cannot be copied ({error}); draw a plain module: without a process group, "
            "and without tensors that were computed from its parameters"
        ) from error
    for module in spare.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
            hooks.clear()
        module._backward_pre_hooks.clear()
        if type(module) is nn.Identity:  # torchview would keep what follows inside it
            module.forward = lambda x, *_, **__: x.view_as(x)
    spare.zero_grad()
    return spare


def _detached(data: Any) -> Any:
    if isinstance(data, torch.Tensor):
        return data.detach().clone().requires_grad_(data.requires_grad)
    return copy.deepcopy(data)


def _layers(model: nn.Module, inputs: tuple, depth: int) -> Shown:
    import torchinfo

    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    stats = torchinfo.summary(
        model.eval(), input_data=list(inputs), depth=depth, verbose=0, device=device,
        col_names=("output_size", "num_params"), row_settings=("var_names",),
    )  # fmt: skip
    rows = [
        [
            "\u2003" * layer.depth + f"{layer.var_name} ({layer.class_name})",
            _shape(layer.output_size),
            layer.num_params,
        ]
        for layer in stats.summary_list
        if layer.depth <= depth
    ]
    html = table(["layer", "output shape", "parameters"], rows, f"{stats.total_params:,} parameters").html
    text = re.sub(
        r"\(Units\.(\w)\w*\)", r"(\1)", str(stats)
    )  # torchinfo writes an enum's name, not its value
    return Shown("\n".join(line.rstrip() for line in text.split("\n")), html)


def _shape(size: Any) -> str:
    return "×".join(map(str, size)) if size and all(isinstance(n, int) for n in size) else str(size)
