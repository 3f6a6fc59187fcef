"""An adapter by itself: A and B of each module, and what else was trained, without the pretrained weights.

>>> save_adapter("adapter.safetensors", model)                                       # doctest: +SKIP
>>> load_adapter("adapter.safetensors", load_minilm()[0])                            # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from course_lib.finetuning.adapter_file import mark_of, read_trained, write_trained
from course_lib.finetuning.lora import LoRAConfig
from course_lib.finetuning.lora_apply import lora_layer, lora_layers
from course_lib.models.names import replace_module


def save_adapter(path: str | Path, model: nn.Module, state: Mapping[str, Tensor] | None = None) -> None:
    """Write A and B of every adapted module and all other trained parameters; merged layers are written like others.

    Args:
        model: the whole model with LoRA.
        state: the values, where ranks have only parts of them: the whole state that FSDP, ``full_state_dict`` or
            ``ParallelModel`` collect. ``model`` gives the names alone then, and may be on the meta device.

    Raises:
        ValueError: the model has no LoRA (its change may have been merged for good), or ``state`` is of another model.
    """
    layers = lora_layers(model)
    if not layers:
        raise ValueError("no module of this model has LoRA, so there is no adapter to save")
    named = dict(model.named_parameters())
    values = named if state is None else state
    for name, p in named.items():
        if name not in values or values[name].shape != p.shape:
            raise ValueError(
                f"the state must have {name} of the shape {tuple(p.shape)}: gather the whole state first"
            )
    saved = {n for n, p in named.items() if p.requires_grad or ".lora_A." in n or ".lora_B." in n}
    write_trained(
        path,
        {plain_name(name): values[name] for name in named if name in saved},
        {"method": "LoRA", "modules": {name: asdict(layer.config) for name, layer in layers.items()}},
        {plain_name(name): values[name] for name in named if name not in saved},
    )


def load_adapter(path: str | Path, model: nn.Module) -> dict[str, LoRAConfig]:
    """Put a saved adapter into the pretrained model that it was trained with, plain or with the same LoRA modules.

    Load before a model is cut or sharded; ranks then start with its values. Freezing is left to
    ``mark_only_lora_as_trainable``.

    Returns:
        The configuration of each adapted module, by its name.

    Raises:
        ValueError: another pretrained model, other LoRA modules, or a tensor of another shape; the model is as it was.
    """
    tensors, settings, mark = read_trained(path)
    if settings.get("method") != "LoRA":
        raise ValueError(f"{path} holds no LoRA adapter, but one of {settings.get('method')}")
    table = {name: LoRAConfig(**fields) for name, fields in settings["modules"].items()}
    named = {plain_name(name): p for name, p in model.named_parameters()}
    own = {name: layer.config for name, layer in lora_layers(model).items()}
    if own and own != table:
        raise ValueError(f"{path} adapts {describe(table)}, and this model has {describe(own)}")
    if mark != mark_of({name: p for name, p in named.items() if name not in tensors}):
        raise ValueError(
            f"{path} was trained with another pretrained model than this one, or with other weights in it"
        )
    if not own:
        for name, layer in {name: lora_layer(model, name, config) for name, config in table.items()}.items():
            replace_module(model, name, layer)
    named = {plain_name(name): p for name, p in model.named_parameters()}
    wrong = [name for name, t in tensors.items() if name not in named or named[name].shape != t.shape]
    if wrong:
        if not own:
            for name, layer in lora_layers(model).items():
                replace_module(model, name, layer.base_layer)
        has = f"{tuple(named[wrong[0]].shape)}" if wrong[0] in named else "none"
        raise ValueError(
            f"{path} has {wrong[0]} of the shape {tuple(tensors[wrong[0]].shape)}; the model has {has}"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            named[name].copy_(tensor)
    return table


def plain_name(name: str) -> str:
    """The name that a parameter has in the plain model."""
    return name.replace(".base_layer.", ".")


def describe(table: Mapping[str, LoRAConfig]) -> str:
    ranks = sorted({config.rank for config in table.values()})
    return f"{len(table)} modules with rank {', '.join(map(str, ranks))} ({next(iter(table))}, …)"
