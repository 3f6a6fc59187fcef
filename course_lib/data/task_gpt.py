"""A GPT of a million parameters that can do the text tasks of ``text_tasks.KNOWN``; no network is needed.

Its weights lie beside this file, in 16 bits. ``python -m course_lib.comparison.finetuning.selection.pretrain`` makes
them from Python's own documentation.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from course_lib.data.text_tasks import ASK, BEGIN, END, VOCABULARY
from course_lib.models.generate import generate
from course_lib.models.gpt import GPT, GPTConfig

CONFIG = GPTConfig(vocab_size=VOCABULARY, max_length=64, num_layers=4, num_heads=6, hidden_size=144)
FILE = Path(__file__).with_name("task_gpt.safetensors")
SHA256 = "43a46e807e7a2ac1f22d79e1d5a2fde8cea1b2a4c4d3e73659b0fde310155db9"


def load_task_gpt(path: Path = FILE) -> GPT:
    """The trained model, in fp32 and in evaluation mode.

    Raises ``ValueError`` when the file is missing, or its SHA-256 is not the one that this module names.
    """
    found = sha256(path) if path.is_file() else "missing"
    if found != SHA256:
        raise ValueError(
            f"{path} is not the model of this course: its SHA-256 is {found}, not {SHA256}; bring the file back, "
            "or make it again with python -m course_lib.comparison.finetuning.selection.pretrain."
        )
    model = GPT(CONFIG)
    load_into(model, path)
    return model.eval()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_into(model: GPT, path: Path) -> None:
    """Any file that ``save`` wrote, whatever its SHA-256."""
    state = {name: tensor.float() for name, tensor in load_file(path).items()}
    model.load_state_dict(state | {"head.weight": state["embedding.tokens.weight"]})


def save(model: GPT, path: Path) -> None:
    """Every tensor once, in fp16: the logits' matrix is the tokens' matrix."""
    state = {name: tensor.half() for name, tensor in model.state_dict().items() if name != "head.weight"}
    save_file(state, path)


def answer(model: torch.nn.Module, text: str, instruction: str = "") -> str:
    """What the model writes after ``instruction:text>``, the likeliest character each time, to the line's end."""
    line: Tensor = torch.tensor([[*f"{instruction}{BEGIN}{text}{ASK}".encode()]])
    [tokens] = generate(model, line, 2 * len(text) + 2, stop=ord(END), use_cache=False)
    return bytes(tokens).decode(errors="replace").removesuffix(END)
