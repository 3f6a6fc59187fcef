"""What of a model is trained: all of it, or what a method of fine-tuning adds to it.

Applied to a plain model, before it is spread over ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from course_lib.finetuning.adapter import add_adapters, add_llama_adapter
from course_lib.finetuning.freeze import (
    ParameterCount,
    count_parameters,
    mark_only_as_trainable,
    mark_only_biases_as_trainable,
)
from course_lib.finetuning.lora_apply import apply_lora, mark_only_lora_as_trainable
from course_lib.finetuning.methods import TUNINGS, virtual_tokens
from course_lib.finetuning.prefix import add_deep_prompts, add_prefix
from course_lib.finetuning.prompt import add_p_tuning, add_prompt
from course_lib.finetuning.side import add_side
from course_lib.models.anatomy import find_anatomies
from simulator.inputs.checks import one_of


def tune(model: nn.Module, method: str = "full", **settings: Any) -> ParameterCount:
    """Adapt ``model`` in place, and freeze what the method does not train.

    Args:
        method, settings: as ``finetuning.methods.TUNINGS`` lists them; a setting that is left out has the method's own
            default.

    Raises:
        ValueError: there is no such method, it does not know this model, or a setting is out of its range.
    """
    one_of("the method of tuning", method, TUNINGS)
    head = ["classifier"] if hasattr(model, "classifier") else []  # it is new, so every method trains it
    n = virtual_tokens({"method": method} | settings)
    settings.pop("tokens", None)
    match method:
        case "full":
            model.requires_grad_(True)
        case "head":
            mark_only_as_trainable(model, head)
        case "lora":
            targets = settings.pop("targets", None) or query_and_value(model)
            apply_lora(model, targets, **settings)
            mark_only_lora_as_trainable(model, also=head)
        case "adapter":
            # Inside the layers, so that a pipeline's stages take them along.
            add_adapters(model, inside=True, **renamed(settings, width="m"))
        case "llama-adapter":
            add_llama_adapter(model, **renamed(settings, length="K"))
        case "side":
            add_side(model, **renamed(settings, width="hidden_size"))
        case "bias":
            mark_only_biases_as_trainable(model, also=head)
        case "prompt":
            add_prompt(model, n, **settings)
        case "p-tuning":
            add_p_tuning(model, n, **renamed(settings, width="hidden_size"))
        case "prefix":
            add_prefix(model, n, **renamed(settings, width="hidden_size"))
        case "p-tuning-v2":
            add_deep_prompts(model, n, **settings)
    return count_parameters(model)


def query_and_value(model: nn.Module) -> list[str]:
    """The linear layers of queries and values, which the LoRA paper adapts (arXiv:2106.09685, section 7.1)."""
    [(_, _, anatomy)] = find_anatomies(model, lambda anatomy: True)
    names = anatomy.names("query", "value", "query, key and value")
    return list(dict.fromkeys(name.rpartition(".")[2] for name in names))


def renamed(settings: Mapping[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in settings.items()}
