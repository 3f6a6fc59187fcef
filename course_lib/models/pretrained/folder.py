"""A folder of pretrained weights: what its ``config.json`` says, and its tensors, of which a part can be read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

ONE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
DOWNLOADED = ["config.json", "model*.safetensors", INDEX, "tokenizer.json"]
Part = Sequence[tuple[int, int]]  # from … to, in each dimension


class Folder:
    """Weights as Hugging Face saves them.

    Args:
        source: a folder, or the name of a model on the hub (``"google-bert/bert-base-uncased"``), which is downloaded
            once.

    Attributes:
        settings: the ``config.json``.
        bytes_read: of the parts of tensors that were asked for.

    Raises:
        ValueError: it is neither, or a file is missing.
    """

    def __init__(self, source: str | Path) -> None:
        self.path = Path(source) if Path(source).is_dir() else _download(str(source))
        self.settings: dict[str, Any] = json.loads(self.file("config.json").read_text(encoding="utf-8"))
        self.bytes_read = 0
        self._open: dict[Path, Any] = {}

    @property
    def kind(self) -> str:
        return self.settings.get("model_type", "model of no kind")

    def file(self, name: str) -> Path:
        if not (self.path / name).is_file():
            raise ValueError(
                f"{self.path} holds no {name}; pretrained weights have it beside their other files."
            )
        return self.path / name

    def check(self, computes: Mapping[str, Any]) -> None:
        """Raise a ValueError where a setting is there, and is not the one thing that the course's class computes."""
        for name, computed in computes.items():
            if (given := self.settings.get(name, computed)) != computed:
                raise ValueError(f"{self.path} has {name} {given!r}; only {computed!r} is supported.")
        if "quantization_config" in self.settings:
            raise ValueError(f"{self.path} holds quantized weights; only floating-point ones are read.")

    @cached_property
    def files(self) -> dict[str, Path]:
        """The file of each tensor, by its name."""
        if (self.path / INDEX).is_file():
            index = json.loads((self.path / INDEX).read_text(encoding="utf-8"))
            return {name: self.file(file) for name, file in index["weight_map"].items()}
        return dict.fromkeys(self._in(self.file(ONE_FILE)).keys(), self.path / ONE_FILE)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._in(self.files[name]).get_slice(name).get_shape())

    def read(self, name: str, part: Part) -> Tensor:
        """A part of a tensor. The rest of the file is not read."""
        tensor = self._in(self.files[name]).get_slice(name)[tuple(slice(*ends) for ends in part)]
        self.bytes_read += tensor.nbytes
        return tensor

    def _in(self, file: Path) -> Any:
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt")
        return self._open[file]


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download  # only those who name a hub model wait for this import

    try:
        return Path(snapshot_download(name, allow_patterns=DOWNLOADED))
    except Exception as error:  # the hub's errors share no base class: bad name, no such model, no network…
        raise ValueError(
            f"{name!r} is neither a folder nor a model the hub gave ({type(error).__name__}); "
            "without a network there is minilm, which is installed."
        ) from error
