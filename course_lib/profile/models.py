"""The models that can be profiled: their configuration from a file, the model, and inputs for one step."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_lib.models.bart import Bart, BartConfig
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.resnet import ResNet18

KINDS = {"int": int, "float": (int, float), "bool": bool, "str": str}


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
    known = {field.name: str(field.type) for field in fields(MODELS[name].config)}
    given = {} if file is None else _read(file, name, known)
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{file}: {name} has no {key!r}; it has {', '.join(known)}")
        kind, optional = known[key].removesuffix(" | None"), known[key].endswith("None")
        right = isinstance(value, KINDS[kind]) and isinstance(value, bool) == (kind == "bool")
        if not right and not (optional and value is None):
            raise ValueError(f"{file}: {key} must be of type {known[key]}, not {value!r}")
        if kind == "int" and value is not None and value < (least := 0 if key.endswith("token_id") else 1):
            raise ValueError(f"{file}: {key} must be at least {least}, not {value}")
    return MODELS[name].config(**given)


def _read(file: Path, name: str, known: dict[str, str]) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{file} is neither TOML nor, as .json, JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold the fields of a {name}, not {content!r}")
    if "model_type" in content and file.suffix == ".json":  # Hugging Face's, with much that is not asked here
        return {key: value for key, value in content.items() if key in known}
    section = content.get("model", content)
    if not isinstance(section, dict):
        raise ValueError(f"{file}: model must be a table with the fields of a {name}, not {section!r}")
    return section


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
