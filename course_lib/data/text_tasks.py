"""Small text tasks on one kind of text: two words of Python's documentation, or a name of two parts.

An instruction says what is wanted, so the same text has a right answer in each task:

    reverse:open file>elif nepo        kind:open file>words        kind:sys.exit>python

``KNOWN`` are the tasks that ``task_gpt`` was trained on, each after its instruction. It never saw the ``NEW`` ones.
The parts for training, validation and test share no text.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from zlib import crc32

import torch
from torch import Tensor

from course_lib.data.docs import corpus

VOCABULARY = 128  # ASCII, a token for each character
BEGIN, ASK, END = ":", ">", "\n"  # instruction BEGIN text ASK answer END
LONGEST = 5  # letters of a word
IGNORED = -100  # a target that no loss counts
PARTS = {"train": range(6), "validation": range(6, 8), "test": range(8, 10)}  # tenths of the texts


def halves(text: str) -> list[str]:
    return re.split(r"([ ._])", text)  # with what stands between them


KNOWN: dict[str, Callable[[str], str]] = {
    "copy": lambda text: text,
    "upper": str.upper,
    "reverse": lambda text: text[::-1],
    "second": lambda text: text[1::2],
    "vowels": lambda text: "".join(letter for letter in text if letter.lower() in "aeiou"),
    "last": lambda text: halves(text)[-1],
    "swap": lambda text: "".join(halves(text)[::-1]),
    "kind": lambda text: "words" if " " in text else "python",
}
NEW: dict[str, Callable[[str], str]] = {
    "shout": lambda text: halves(text)[-1].upper(),  # two known tasks in one
    "yell": lambda text: text[::-1].upper(),  # two others
    "bang": lambda text: text + "!",  # a letter that the model never wrote, as that of stars
    "crosses": lambda text: re.sub("[aeiouAEIOU]", "x", text),
    "stars": lambda text: re.sub("[aeiouAEIOU]", "*", text),
    "next": lambda text: re.sub("[a-zA-Z]", lambda letter: chr(ord(letter[0]) + 1), text),
}
TASKS = KNOWN | NEW
SPACES = 3  # at most so many tokens stand before an instruction in training, so that it may stand anywhere


@cache
def texts(part: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All different texts of one of the ``PARTS``, in a fixed order: those of Python, and those of words.

    The part of a text depends on its letters alone.
    """
    if part not in PARTS:
        raise ValueError(f"part is {part!r}; choose from {', '.join(PARTS)}.")
    word = rf"[A-Za-z]{{2,{LONGEST}}}"
    found = set(re.findall(rf"(?<![\w.])(?=({word}[ ._]{word})(?!\w))", corpus()))
    here = sorted(text for text in found if crc32(text.encode()) % 10 in PARTS[part])
    return tuple(t for t in here if " " not in t), tuple(t for t in here if " " in t)


def draw_texts(part: str, n: int | None, draw: random.Random) -> list[str]:
    """``n`` texts, Python and words in turn. None: every text of Python once, and as many of words."""
    python, words = texts(part)
    if n is not None:
        return [draw.choice((python, words)[i % 2]) for i in range(n)]
    return [text for pair in zip(python, draw.sample(words, len(python)), strict=True) for text in pair]


def encode(lines: Sequence[str], answers: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Tokens and targets, both ``(n, seq)``, seq the longest. Only an answer and its END are targets."""
    whole = [[*(line + answer + END).encode()] for line, answer in zip(lines, answers, strict=True)]
    seq = max(map(len, whole)) - 1
    tokens = torch.full((len(whole), seq), ord(END))
    targets = torch.full((len(whole), seq), IGNORED)
    for i, (line, ids) in enumerate(zip(lines, whole, strict=True)):
        tokens[i, : len(ids) - 1] = torch.tensor(ids[:-1])
        targets[i, len(line) - 1 : len(ids) - 1] = torch.tensor(ids[len(line) :])
    return tokens, targets


def samples(
    task: str, part: str, n: int | None = None, *, seed: int = 0, instruction: str = ""
) -> tuple[Tensor, Tensor]:
    """Lines of one task as tokens and targets, ``(n, seq)`` each; ``draw_texts`` explains n.

    Args:
        instruction: stands before each text: the name of a known task, or nothing.
    """
    if task not in TASKS:
        raise ValueError(f"task is {task!r}; choose from {', '.join(TASKS)}.")
    chosen = draw_texts(part, n, random.Random(seed))
    lines = [f"{instruction}{BEGIN}{text}{ASK}" for text in chosen]
    return encode(lines, [TASKS[task](text) for text in chosen])
