"""Files that hold only what was trained, with a mark of the pretrained model that it belongs to."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


def write_trained(
    path: str | Path, tensors: Mapping[str, Tensor], settings: dict[str, Any], base: Mapping[str, Tensor]
) -> None:
    """Write ``tensors`` to a safetensors file, at once or not at all.

    Args:
        settings: a dict that JSON can hold; ``read_trained`` gives it back.
        base: the frozen parameters, which are not written: only the mark that tells this model from another.
    """
    about = {"settings": json.dumps(settings), "base": mark_of(base)}
    own = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    unfinished = Path(f"{path}.unfinished")
    try:
        save_file(own, unfinished, metadata=about)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_trained(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """Tensors, settings and the mark of the model that they were trained with.

    Raises:
        ValueError: there is no such file, or ``write_trained`` has not written it.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        return tensors, json.loads(about["settings"]), about["base"]
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is no file that write_trained has written ({type(error).__name__})"
        ) from error


def mark_of(base: Mapping[str, Tensor]) -> str:
    """A hash of names, shapes and all values. It is the same for a copy in bf16, to which the values are rounded."""
    digest = hashlib.sha256()
    for name in sorted(base):
        tensor = base[name].detach()
        digest.update(repr((name, tuple(tensor.shape))).encode())
        rounded = tensor.to("cpu", torch.bfloat16).contiguous()
        digest.update(rounded.view(torch.int16).numpy())
    return digest.hexdigest()
