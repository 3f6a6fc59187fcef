"""A model with a prompt or a prefix, drawn in a few boxes: what is frozen is grey, what is trained has a colour."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from torch import nn

from course_lib.observe.networks.draw import picture_of
from course_lib.observe.networks.placement import size_of
from course_lib.observe.networks.render import PALETTE, Box, Frame, Graph
from course_lib.observe.show.amounts import amount
from course_lib.observe.show.shown import Shown
from simulator.plots.picture import Picture

TRAINED, FROZEN = PALETTE[1], "#cccccc"


def draw_adapted(models: Mapping[str, nn.Module]) -> Picture | Shown:
    """Each ``BertClassifier`` in a frame of its own, from embeddings to classifier, with the bytes of its parts.

    Args:
        models: title -> a classifier with ``add_prompt``, ``add_p_tuning``, ``add_prefix`` or ``add_deep_prompts``.

    Raises:
        ValueError: there is no model.
    """
    if not models:
        raise ValueError("there is nothing to draw: give at least one model")
    frame, edges, said = Frame(), [], []
    for title, model in models.items():
        inside = Frame(title)
        boxes = _parts(model)
        chain = [key for key in boxes if key != "added"]
        for name, (text, parameters) in boxes.items():
            inside.inside.append(_box((title, name), text, parameters))
        edges += [((title, a), (title, b)) for a, b in pairwise(chain)]
        if "added" in boxes:
            edges.append(((title, "added"), (title, "layers")))
        frame.inside.append(inside)
        trained = [p for p in model.parameters() if p.requires_grad]
        said.append(f"{title}: {amount(size_of(trained), 'B')} trained")
    legend = [(TRAINED, "trained"), (FROZEN, "frozen")]
    return picture_of(Graph(frame, edges, legend), f"Adapted models, part by part. {'; '.join(said)}.")


def _parts(model: nn.Module) -> dict[str, tuple[str, list[nn.Parameter]]]:
    bert = model.bert
    parts: dict[str, tuple[str, list[nn.Parameter]]] = {}
    prompt, prefix = getattr(bert, "prompt", None), getattr(bert, "prefix", None)
    if prompt is not None:
        parts["added"] = f"{prompt.n} virtual tokens", list(prompt.parameters())
    elif prefix is not None:
        parts["added"] = f"{prefix.n} keys and values\nin each layer", list(prefix.parameters())
    parts["embeddings"] = "embeddings", list(bert.embeddings.parameters())
    parts["layers"] = f"{len(bert.encoder.layer)} layers", list(bert.encoder.parameters())
    parts["pooler"] = "pooler", list(bert.pooler.parameters())
    parts["classifier"] = "classifier", list(model.classifier.parameters())
    return parts


def _box(key: object, name: str, parameters: list[nn.Parameter]) -> Box:
    lines, colours = [], []
    for word, wanted, colour in (("trained", True, TRAINED), ("frozen", False, FROZEN)):
        if found := [p for p in parameters if p.requires_grad == wanted]:
            lines.append(f"{word}: {amount(size_of(found), 'B')}")
            colours.append(colour)
    return Box(key, name, tuple(lines), tuple(colours))
