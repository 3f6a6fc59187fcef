"""LoRA on named modules of a plain model, from outside.

>>> apply_lora(model, ["query", "value"], rank=8, alpha=16)                          # doctest: +SKIP
>>> mark_only_lora_as_trainable(model, also=["classifier"])                          # doctest: +SKIP
>>> optimizer = AdamW(p for p in model.parameters() if p.requires_grad)              # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from course_lib.finetuning.freeze import ParameterCount, is_bias, mark_only_as_trainable, parameters_called
from course_lib.finetuning.lora import LoRAConfig, LoRAEmbedding, LoRALinear, LoRAMergedLinear
from course_lib.models.names import find_modules, replace_module


def apply_lora(
    model: nn.Module,
    targets: Iterable[str] | Mapping[str, LoRAConfig],
    config: LoRAConfig | None = None,
    **settings: Any,
) -> dict[str, LoRAConfig]:
    """Adapt the modules of ``model`` that are named, in place. Freeze the rest with ``mark_only_lora_as_trainable``.

    Tensor parallelism, recomputation, pipelines and data parallelism come afterwards.

    Args:
        targets: names (``"query"``, ``"layer.*.attention.output.dense"``, see ``models/names.py``), or
            a table of names with a configuration for each; of two that fit a module the first counts.
        config: for all targets, if they are no table; or its fields as ``settings`` (``rank=8, alpha=16``).

    Returns:
        The configuration of each adapted module, by its name.

    Raises:
        ValueError: a name that no module has, or a module that cannot be adapted; the model is as it was.
    """
    if not isinstance(targets, Mapping):
        targets = dict.fromkeys(
            [targets] if isinstance(targets, str) else targets, config or LoRAConfig(**settings)
        )
    elif config or settings:
        raise ValueError("give configurations in the table of targets or beside the names, not both")
    table: dict[str, LoRAConfig] = {}
    for pattern, chosen in targets.items():
        table = dict.fromkeys(find_modules(model, pattern), chosen) | table
    if not table:
        raise ValueError("targets must name at least one module")
    adapted = {name: lora_layer(model, name, chosen) for name, chosen in table.items()}
    for name, layer in adapted.items():
        replace_module(model, name, layer)
    return table


def lora_layer(model: nn.Module, name: str, config: LoRAConfig) -> LoRALinear:
    """A layer around a module of ``model``, of the class that fits."""
    module, holder = model.get_submodule(name), model.get_submodule(name.rpartition(".")[0])
    if isinstance(module, LoRALinear) or isinstance(holder, LoRALinear):
        raise ValueError(f"{name} has LoRA already")
    if isinstance(holder, nn.MultiheadAttention):
        raise ValueError(
            f"{name} cannot be adapted: nn.MultiheadAttention reads its weight without calling it"
        )
    matrix = getattr(module, "weight", None)
    other_layout = config.fan_in_fan_out and isinstance(matrix, Tensor) and matrix.dim() == 2
    if isinstance(module, nn.Linear | nn.Embedding) == config.fan_in_fan_out or not (
        isinstance(module, nn.Linear | nn.Embedding) or other_layout
    ):
        raise ValueError(
            f"{name} is a {type(module).__name__}; LoRA is for nn.Linear and nn.Embedding, and with fan_in_fan_out "
            "for a layer that keeps its weight as (in, out)"
        )
    if isinstance(module, nn.Embedding):
        return LoRAEmbedding(module, config)
    return (LoRAMergedLinear if config.parts else LoRALinear)(module, config)


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """The adapted modules of a model, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}


def mark_only_lora_as_trainable(
    model: nn.Module, bias: str = "none", also: Iterable[str] = ()
) -> ParameterCount:
    """Train A and B of every adapted module, and freeze all other parameters.

    Args:
        bias: of the pretrained biases "none", "all" or "lora_only" (those of adapted modules) are trained, too.
        also: names of modules that are trained in full, such as a new ``"classifier"``.

    Raises:
        ValueError: ``bias`` is none of the three, nothing is adapted, or a name fits nothing.
    """
    if bias not in ("none", "all", "lora_only"):
        raise ValueError(f"bias must be 'none', 'all' or 'lora_only', not {bias!r}")
    layers = lora_layers(model)
    if not layers:
        raise ValueError("no module of this model has LoRA: call apply_lora first")
    chosen = {p for pattern in also for p in parameters_called(model, pattern)}
    for layer in layers.values():
        chosen |= {*layer.lora_A.parameters(), *layer.lora_B.parameters()}
        if bias == "lora_only" and getattr(layer.base_layer, "bias", None) is not None:
            chosen.add(layer.base_layer.bias)
    return mark_only_as_trainable(model, lambda name, p: p in chosen or (bias == "all" and is_bias(name)))


def merge(model: nn.Module) -> None:
    """Merge every adapted module; those that are merged stay as they are."""
    for layer in lora_layers(model).values():
        layer.merge()


def unmerge(model: nn.Module) -> None:
    """W0, A and B work apart again. W0 is what it was, to the last bit."""
    for layer in lora_layers(model).values():
        layer.unmerge()


def merge_and_unload(model: nn.Module) -> nn.Module:
    """The plain model with its plain names, W0 + ΔW in the place of W0. A weight that was tied to W0 keeps W0."""
    for name, layer in lora_layers(model).items():
        layer.unmerge()  # what was merged may be from before the last update
        layer.merge()
        layer.base_layer.weight = nn.Parameter(layer.merged_weight, layer.base_layer.weight.requires_grad)
        replace_module(model, name, layer.base_layer)
    return model
