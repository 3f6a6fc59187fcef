"""DeepSeek-V3: the names of parameters are Hugging Face's, but for the experts, of which each has files of its own."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from course_lib.models.deepseek import Deepseek, DeepseekConfig
from course_lib.models.pretrained import llama
from course_lib.models.pretrained.family import Family, Pretrained, known_settings
from course_lib.models.pretrained.folder import Folder
from course_lib.models.pretrained.mixtral import theta_of
from course_lib.models.pretrained.tokenizer import tokenizer_of


def config_of(folder: Folder) -> DeepseekConfig:
    known = known_settings(DeepseekConfig, folder.settings)
    known.pop("rope_scaling", None)
    return DeepseekConfig(**known | {"rope_theta": theta_of(folder, 10000.0)})


def stacked(name: str) -> tuple[str, ...]:
    experts, _, kind = name.rpartition(".experts.")
    each = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(kind, ())
    return tuple(f"{experts}.experts.*.{one}.weight" for one in each)


DEEPSEEK = Family(
    kinds={"deepseek_v3": {}},
    computes={
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_interleave": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    config=config_of,
    model=Deepseek,
    sources=llama.sources,
    # The layer behind the last one predicts one more token, in training alone.
    unread=lambda name: name.startswith("model.layers.61.") or llama.LLAMA.unread(name),
    stacked=stacked,
)


def load_deepseek(
    source: str | Path, dtype: torch.dtype = torch.float32
) -> tuple[Deepseek, Tokenizer | None]:
    """A DeepSeek-V3 in evaluation mode, and its tokenizer; None: the folder has no ``tokenizer.json``.

    Args:
        source: a folder or a name on the hub (``Folder``).
        dtype: of the parameters, whatever the files hold.

    Raises:
        ValueError: it is neither, or is no model that this course's class can hold.
    """
    pretrained = Pretrained(source, DEEPSEEK)
    return pretrained.load(dtype), tokenizer_of(pretrained.folder)
