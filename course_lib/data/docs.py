"""Python's own documentation as text to learn from: real English that every installation carries.

A language corpus (the language reference of ``help("if")`` and the standard library's docstrings) and a classification
task: from which package does this docstring come? The text differs a little between versions of Python; for one
version it is always the same.
"""

from __future__ import annotations

import ast
import gc
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from course_lib.models.pretrained import load_tokenizer

# Left out: tests and programs, and what not every installation has (tkinter and turtle are packaged
# separately by Debian, distutils ended with Python 3.11).
EXCLUDED = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data"}
EXCLUDED |= {"tkinter", "turtle", "distutils"}

TOKENIZERS = ("bytes", "wordpiece")


class Docstring(NamedTuple):
    package: str  # "asyncio"
    name: str  # "asyncio.queues.Queue.put"
    text: str


@cache
def docstrings() -> tuple[Docstring, ...]:
    """Every docstring of the standard library's public packages, in order of module and line; about a second.

    The source is parsed, not imported: importing everything would open a browser (``antigravity``), print a poem
    (``this``) and start a good deal else.
    """
    collects = gc.isenabled()
    gc.disable()  # the collector would look again and again at all that torch holds, for half of the time
    try:
        return tuple(_docstrings(Path(sysconfig.get_path("stdlib"))))
    finally:
        if collects:
            gc.enable()


def _docstrings(root: Path) -> list[Docstring]:
    found = []
    for package in sorted(sys.stdlib_module_names - EXCLUDED):
        if package.startswith("_"):
            continue
        for path in [root / f"{package}.py", *sorted((root / package).rglob("*.py"))]:
            parts = path.relative_to(root).with_suffix("").parts
            if path.is_file() and not EXCLUDED & set(parts):
                name = ".".join(parts).removesuffix(".__init__")
                tree = ast.parse(path.read_bytes())
                found += [Docstring(package, *entry) for entry in _walk(tree, name)]
    if not found:
        raise ValueError(f"{root} holds no source of the standard library; install Python with its sources.")
    return found


def _walk(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Name and text of each docstring in a module or class, and in the functions and classes directly in it."""
    text = ast.get_docstring(node)
    if text:
        yield name, text
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _walk(child, f"{name}.{child.name}")


@cache
def corpus() -> str:
    """About 1.5 million characters: the topics of ``help()``, then the docstrings, each text once."""
    from pydoc_data.topics import topics

    texts = [topics[name] for name in sorted(topics)] + [entry.text for entry in docstrings()]
    return "\n\n".join(dict.fromkeys(text.strip() for text in texts))


@cache
def corpus_tokens(tokenizer: str = "bytes") -> Tensor:
    """The corpus as int64 ``(n,)``.

    ``"bytes"``: one token per byte of UTF-8, 256 in all; read them again with ``bytes(tokens.tolist()).decode()``.
    ``"wordpiece"``: the 30,522 lower-case word pieces of MiniLM, about a quarter as many tokens.
    The tensor is shared by all callers: do not write into it.
    """
    if tokenizer not in TOKENIZERS:
        raise ValueError(f"tokenizer is {tokenizer!r}; choose one of {', '.join(TOKENIZERS)}.")
    if tokenizer == "bytes":
        return torch.frombuffer(bytearray(corpus().encode()), dtype=torch.uint8).long()
    paragraphs = load_tokenizer().encode_batch(corpus().split("\n\n"), add_special_tokens=False)
    return torch.tensor([token for paragraph in paragraphs for token in paragraph.ids])


def language_windows(tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, both ``(windows, length)``: the target is the token that follows.

    Windows do not overlap, and share ``tokens``' memory. What remains at the end is left out.
    """
    if not 1 <= length < len(tokens):
        raise ValueError(
            f"length is {length}; with {len(tokens)} tokens it runs from 1 to {len(tokens) - 1}."
        )
    used = (len(tokens) - 1) // length * length
    return tokens[:used].view(-1, length), tokens[1 : used + 1].view(-1, length)


class PackageTask(NamedTuple):
    """Docstrings and the packages they come from; ``task[:3]`` is what ``batches`` takes."""

    tokens: Tensor  # (n, length) int64, padded with 0
    mask: Tensor  # (n, length) bool, true where a token is
    labels: Tensor  # (n,) int64, an index into packages
    packages: tuple[str, ...]  # the most frequent first


def package_task(split: str = "train", classes: int = 8, length: int = 64) -> PackageTask:
    """From which of the ``classes`` best documented packages does a docstring come? (asyncio, email, logging…)

    Tokens are MiniLM's, ``[CLS] … [SEP]``, cut to ``length``. Texts under 20 characters and texts that stand in several
    places are left out, so that no test text is a training text. A fifth, always the same, is for ``"test"``.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}; choose 'train' or 'test'.")
    times = Counter(entry.text for entry in docstrings())
    entries = [entry for entry in docstrings() if len(entry.text) >= 20 and times[entry.text] == 1]
    frequencies = Counter(entry.package for entry in entries)
    if not 2 <= classes <= len(frequencies):
        raise ValueError(f"classes is {classes}; choose from 2 to {len(frequencies)} packages.")
    if length < 3:
        raise ValueError(f"length is {length}; [CLS], a token and [SEP] need at least 3.")
    packages = tuple(package for package, _ in frequencies.most_common(classes))
    entries = [entry for entry in entries if entry.package in packages]

    order = np.random.RandomState(0).permutation(len(entries))
    tests = len(entries) // 5
    chosen = [entries[i] for i in (order[:tests] if split == "test" else order[tests:])]
    tokenizer = load_tokenizer()
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    encoded = tokenizer.encode_batch([entry.text for entry in chosen])
    return PackageTask(
        tokens=torch.tensor([text.ids for text in encoded]),
        mask=torch.tensor([text.attention_mask for text in encoded], dtype=torch.bool),
        labels=torch.tensor([packages.index(entry.package) for entry in chosen]),
        packages=packages,
    )
