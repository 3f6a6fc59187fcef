"""The models that can be profiled: their configuration from a file, the model, and inputs for one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_lib.models.bart import Bart, BartConfig
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.resnet import ResNet18
from simulator.inputs.typed import Count, CountOrZero, Finite, Text, check_types, read_json, read_toml, table


@dataclass(frozen=True)
class ResNetConfig:
    """ResNet-18 for images of ``image`` x ``image``. The defaults are ImageNet's."""

    num_classes: int = 1000
    in_channels: int = 3
    small_images: bool = False
    width: int = 64
    image: int = 224


class Entry(NamedTuple):
    """How a model is made from its configuration, and where the longest sequence stands in it."""

    config: type
    make: Callable[[Any], nn.Module]
    longest: str = ""
    sequences: int = 1  # that one sample has: BART reads one, and writes one


MODELS = {
    "bert": Entry(BertConfig, lambda c: Bert(c, pooler=True), "max_position_embeddings"),
    "gpt": Entry(GPTConfig, GPT, "max_length"),
    "llama": Entry(LlamaConfig, Llama, "max_position_embeddings"),
    "bart": Entry(BartConfig, Bart, "max_position_embeddings", 2),
    "resnet": Entry(
        ResNetConfig,
        lambda c: ResNet18(c.num_classes, c.in_channels, small_images=c.small_images, width=c.width),
    ),
}


def read_config(name: str, file: Path | None) -> Any:
    """The configuration of model ``name``: the fields in ``file``, and defaults for the others.

    The file is TOML, with the fields at its top or in a table ``[model]``; or a ``config.json`` of Hugging Face, in
    which fields that are not known here are left out.

    Raises:
        ValueError: a file that cannot be read, or is neither; a field that the model has not, or of another type.
    """
    given = {} if file is None else _read(file, name)
    try:
        check_types(_types(name), given)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return MODELS[name].config(**given)


KINDS = {
    "int": Count,
    "float": Finite,
    "bool": bool,
    "str": Text,
}  # of a config's field, as a file can give it


def _fields(name: str) -> list[Field]:
    """Those of a config that a file can give: numbers, words, yes and no."""
    return [f for f in fields(MODELS[name].config) if str(f.type).removesuffix(" | None") in KINDS]


def _types(name: str) -> type:
    keys = {}
    for field in _fields(name):
        kind = str(field.type).removesuffix(" | None")
        found = CountOrZero if field.name.endswith("token_id") else KINDS[kind]
        keys[field.name] = found | None if str(field.type) != kind else found
    return table(name, keys)


def _read(file: Path, name: str) -> dict[str, Any]:
    content = read_json(file) if file.suffix == ".json" else read_toml(file)
    if isinstance(content, dict) and "model_type" in content and file.suffix == ".json":
        known = {field.name for field in _fields(name)}
        return {key: value for key, value in content.items() if key in known}  # Hugging Face's has much more
    return content.get("model", content) if isinstance(content, dict) else content


def make_inputs(name: str, config: Any, batch: int, sequence: int | None) -> tuple[Tensor, ...]:
    """Zeros: an image, or the tokens of each sequence, ``(batch, sequence)``.

    Args:
        sequence: tokens; None: 128, or as many as the model has positions for.

    Raises:
        ValueError: more tokens than positions; a sequence of images.
    """
    entry = MODELS[name]
    if not entry.longest:
        if sequence is not None:
            raise ValueError(
                f"--sequence is for text; the images of {name} have their size in the file, as image"
            )
        return (torch.zeros(batch, config.in_channels, config.image, config.image),)
    longest = getattr(config, entry.longest)
    sequence = min(128, longest) if sequence is None else sequence
    if sequence > longest:
        raise ValueError(f"--sequence is {sequence}; this {name} has {longest} positions ({entry.longest})")
    tokens = torch.zeros(batch, sequence, dtype=torch.long)
    return (tokens,) * entry.sequences
