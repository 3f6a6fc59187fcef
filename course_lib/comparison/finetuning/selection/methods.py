"""The ways of tuning the task GPT that are compared, and the learning rates that are tried of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_lowercase

from torch import nn

from course_lib.finetuning.adapter import add_llama_adapter
from course_lib.finetuning.lora_apply import apply_lora, mark_only_lora_as_trainable
from course_lib.finetuning.prefix import add_deep_prompts, add_prefix
from course_lib.finetuning.prompt import add_prompt
from course_lib.finetuning.template import add_template

VIRTUAL_TOKENS = 8
ANCHOR = (
    "task"  # stands between the trained vectors of P-tuning; no instruction, so it says nothing of the task
)
# Learning rates: where networks are trained, where LoRA's matrices are, where vectors are, and behind a gate.
LOW, MIDDLE = (1e-3, 3e-3, 1e-2), (3e-3, 1e-2, 3e-2)
HIGH, HIGHEST = (3e-2, 1e-1, 3e-1), (1e-1, 3e-1, 1.0)
MATRICES = ("query", "key", "value", "attention.output", "up", "down")


@dataclass(frozen=True)
class Method:
    """One row of the table.

    Attributes:
        title: in tables and pictures.
        adapt: a model in place, under a run's seed; all else in it is frozen.
        lrs: learning rates that are tried.
    """

    title: str
    adapt: Callable[[nn.Module, int], object]
    lrs: tuple[float, ...]


def letters(seed: int) -> list[int]:
    """Tokens to start virtual tokens from: letters that say nothing."""
    draw = random.Random(seed)
    return [ord(draw.choice(ascii_lowercase)) for _ in range(VIRTUAL_TOKENS)]


def lora(model: nn.Module, rank: int) -> None:
    apply_lora(model, MATRICES, rank=rank, alpha=2 * rank)
    mark_only_lora_as_trainable(model)


METHODS = {
    "prompt": Method(
        "prompt tuning", lambda model, seed: add_prompt(model, VIRTUAL_TOKENS, letters(seed)), HIGH
    ),
    "p-tuning": Method(
        "P-tuning v1, an anchor between",
        lambda model, _: add_template(model, (VIRTUAL_TOKENS // 2, [*ANCHOR.encode()], VIRTUAL_TOKENS // 2)),
        LOW,
    ),
    "prefix": Method("prefix tuning", lambda model, _: add_prefix(model, VIRTUAL_TOKENS), LOW),
    "p-tuning-v2": Method(
        "P-tuning v2, deep", lambda model, seed: add_deep_prompts(model, VIRTUAL_TOKENS, letters(seed)), HIGH
    ),
    "llama-adapter": Method(
        "LLaMA-Adapter", lambda model, _: add_llama_adapter(model, VIRTUAL_TOKENS), HIGHEST
    ),
    "lora-r1": Method("LoRA, rank 1", lambda model, _: lora(model, 1), MIDDLE),
    "lora-r8": Method("LoRA, rank 8", lambda model, _: lora(model, 8), MIDDLE),
}
