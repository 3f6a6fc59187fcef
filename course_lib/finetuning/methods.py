"""The ways of tuning by name: one spelling for the files of ``course_lib.train``, the comparison, and the tests.

Imports no torch, so that a file is checked before anything heavy is loaded. ``train/tuning.py`` applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.inputs.typed import Count, Finite, Text

VIRTUAL_TOKENS = 8  # in front of the text, where nothing says how many


@dataclass(frozen=True)
class Tuning:
    """One way of tuning.

    Attributes:
        title: in tables and pictures.
        settings: what it takes, each with the type that it must have in a file.
    """

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)


TUNINGS = {
    "full": Tuning("Full fine-tuning"),
    "head": Tuning("Head only"),
    "bias": Tuning("Biases only (BitFit)"),
    "lora": Tuning("LoRA", {"rank": Count, "alpha": Finite, "dropout": Finite, "targets": list[Text]}),
    "adapter": Tuning("Adapters", {"width": Count, "kind": Text}),
    "llama-adapter": Tuning("LLaMA-Adapter", {"length": Count, "layers": Count}),
    "side": Tuning("Side tuning", {"layers": Count, "width": Count, "alpha": Finite}),
    "prompt": Tuning("Prompt tuning", {"tokens": Count, "start": Text}),
    "p-tuning": Tuning("P-tuning", {"tokens": Count, "encoder": Text, "width": Count}),
    "prefix": Tuning("Prefix tuning", {"tokens": Count, "width": Count}),
    "p-tuning-v2": Tuning("P-tuning v2", {"tokens": Count}),
}


def virtual_tokens(tuning: Mapping[str, Any]) -> int:
    """How many trained vectors stand in front of a text under a ``method`` with its settings; 0 under most."""
    return tuning.get("tokens", VIRTUAL_TOKENS) if "tokens" in TUNINGS[tuning["method"]].settings else 0
