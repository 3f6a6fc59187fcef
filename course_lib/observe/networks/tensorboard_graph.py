"""What ``SummaryWriter.add_graph`` wrote for TensorBoard, drawn without starting its server."""

from __future__ import annotations

import re
from pathlib import Path

from course_lib.observe.networks.draw import picture_of
from course_lib.observe.networks.render import Box, Frame, Graph
from course_lib.observe.show.shown import Shown
from simulator.plots.picture import Picture

_SCOPE = re.compile(r"(\w+)\[(.+)\]")  # Conv2d[conv1]


def draw_tensorboard(folder: str | Path) -> Picture | Shown:
    """The graph in a folder of event files, one box for each module of the first level, as TensorBoard folds it.

    TensorBoard groups operators by the names of their modules. A module that is called twice is one box.

    Raises:
        ValueError: the folder holds no graph.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    if not events.Tags()["graph"]:
        raise ValueError(
            f"{folder} holds no graph; write one with SummaryWriter(folder).add_graph(model, inputs)"
        )
    nodes = {node.name: node for node in events.Graph().node}
    boxes = {name: box for name, node in nodes.items() if (box := _box(name, node.op))}

    def sources(name: str) -> list[str]:
        """The boxes that feed this node: constants and lists in between are not drawn."""
        found = []
        for other in nodes[name].input:
            found += [boxes[other].key] if other in boxes else sources(other) if other in nodes else []
        return found

    edges = {(tail, box.key): None for name, box in boxes.items() for tail in sources(name)}
    joined = {edge: None for edge in edges if edge[0] != edge[1]}
    frame = Frame(inside=list({box.key: box for box in boxes.values()}.values()))
    root = next(name for name in nodes if not name.startswith(("input/", "output/"))).split("/")[0]
    what = f"TensorBoard's graph of {root}: {len(frame.inside)} boxes, each module once however often it is called."
    return picture_of(Graph(frame, list(joined)), what)


def _box(name: str, operator: str) -> Box | None:
    first, *scopes, _ = name.split("/")
    if operator == "IO Node":
        return Box(name, first if first == "input" else "output")
    if not operator.startswith("aten::"):
        return None
    module = _SCOPE.fullmatch(scopes[0]) if scopes else None
    if module is None:  # an operator that stands outside every submodule
        return Box(name, operator.removeprefix("aten::"), is_function=True)
    return Box(scopes[0], module[2], (module[1],))
