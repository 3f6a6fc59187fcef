"""Chapter 12's five training runs: one is right, and in each of the others one line of ``three_dimensions`` is wrong.

The runs differ only in a line of the source. Each rank reads the source, changes the line, and runs it: what the
reader sees at the end is what was run.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from html import escape
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from course_lib.chapters import three_dimensions
from course_lib.chapters.caught import BUGS
from course_lib.chapters.refused import Refused
from course_lib.chapters.three_dimensions import SIZES, Weights
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.show.shown import Shown
from course_lib.runtime import launch

Change = tuple[str, str]  # a piece of a line, and what stands in its place

CONFIG = GPTConfig.tiny(hidden_size=64, max_length=32, num_layers=2)
BATCH, LENGTH, MICRO, MAX_NORM = 16, 32, 2, 1.0
NOTHING = ("", "")
RUNS: dict[str, Change] = {
    "A": ("clip_grads_with_norm_(weights, max_norm, norm)", "nn.utils.clip_grad_norm_(weights, max_norm)"),
    "B": ("y = loss / of_all", 'y = loss / own / self.sizes["dp"]'),
    "C": ('parts[self.at["tp"]]', "parts[0]"),
    "D": NOTHING,
    "E": ('dist.all_reduce(self.tied.grad, group=self.group["ends"])', "pass"),
}

# The bugs by number: in which run each is, and what is wrong. Run D has none.
BUG_RUNS = {
    1: ("E", "the stages do not add up their gradients of the embedding"),
    2: ("A", "each rank clips by the norm of its own gradients"),
    3: ("B", "backward starts from the mean of the dp ranks' mean losses"),
    4: ("C", "both tp ranks hold the same half of each matrix"),
}


def the_bugs(*numbers: int, yours: int | None = None) -> Shown:
    """Of each bug what is wrong, and the right line above the wrong one; which run has it is not said.

    Args:
        numbers: of the bugs.
        yours: the bug of which the reader writes the right line.
    """
    texts, marked = [], []
    for number in numbers:
        run, wrong = BUG_RUNS[number]
        lines = repr(the_line(run)).replace(f"run {run}", "wrong")
        if number == yours:
            lines = "right   ?\n" + lines.splitlines()[1]
        if number == 3:
            first, second = targets_of_dp()
            lines += (
                f"\nhere    targets: own = {first} on dp 0 and {second} on dp 1, of_all = {first + second}"
            )
        texts.append(f"bug {number}   {wrong}\n{lines}")
        frame = f"border: 2px solid {BUGS[number - 1][0]}; border-radius: 4px; padding: 0 3px"
        marked.append(
            f'<p style="margin: 0.9em 0 0.2em"><b style="{frame}">bug {number}</b> {escape(wrong)}</p>'
            f"<pre>{escape(lines)}</pre>"
        )
    return Shown("\n\n".join(texts), "".join(marked))


def targets_of_dp() -> list[int]:
    """The targets, without padding, that each dp rank has in the first step."""
    _, targets = next(text_batches(1))
    return [int((part != -100).sum()) for part in targets.chunk(SIZES["dp"])]


def the_line(name: str) -> Shown:
    """The line of a run that is wrong, below the one that is right."""
    old, new = RUNS[name]
    source = inspect.getsource(three_dimensions).splitlines()
    right = next(line.strip() for line in source if old in line)
    wrong = right.replace(old, new)
    text = f"right   {right}\nrun {name}   {wrong}" if old else "no line differs"
    return Shown(text, f"<pre>{escape(text)}</pre>")


def text_batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Sums such as ``23 + 45 = 68`` byte by byte: tokens and the tokens that follow, 16 sequences of 32 a step.

    In the second half of them the last 24 targets are padding (-100), as where texts are short.
    """
    draw = Random(0)
    pairs = [(draw.randrange(100), draw.randrange(100)) for _ in range(60 * steps)]
    text = torch.tensor(list("".join(f"{a} + {b} = {a + b}\n" for a, b in pairs).encode()))
    for i in range(steps):
        window = text[i * BATCH * LENGTH : (i + 1) * BATCH * LENGTH + 1]
        tokens, targets = window[:-1].view(BATCH, LENGTH), window[1:].view(BATCH, LENGTH).clone()
        targets[BATCH // 2 :, LENGTH // 4 :] = -100
        yield tokens, targets


def one_device(steps: int = 1) -> SimpleNamespace:
    """The same model on the same batches: losses and gradient norms of each step."""
    torch.manual_seed(0)
    model = GPT(CONFIG)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    losses, norms = [], []
    for tokens, targets in text_batches(steps):
        loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return SimpleNamespace(losses=losses, norms=norms)


def changed(change: Change) -> dict[str, Any]:
    """The names of ``three_dimensions``, with one line changed.

    Raises:
        ValueError: what is to be changed does not stand there once.
    """
    source = inspect.getsource(three_dimensions)
    old, new = change
    if old and source.count(old) != 1:
        raise ValueError(f"{old!r} stands {source.count(old)} times in three_dimensions.py, not once")
    names: dict[str, Any] = {"__name__": "three_dimensions"}
    exec(compile(source.replace(old, new) if old else source, "three_dimensions.py", "exec"), names)
    return names


def run_on_rank(change: Change, steps: int) -> SimpleNamespace:
    """Train; the losses and the norms that were reported, and what the rank holds at the end."""
    torch.manual_seed(0)
    rank = changed(change)["Rank"](GPT(CONFIG), SIZES)
    optimizer = AdamW(rank.parameters().values(), lr=1e-3)
    losses, norms = [], []
    for batch in text_batches(steps):
        own = [part.chunk(SIZES["dp"])[rank.at["dp"]] for part in batch]
        losses.append(rank.step(*(part.chunk(MICRO) for part in own)).item())
        norm = rank.gradient_norm()
        norms.append(norm.item())
        rank.clip(norm, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return SimpleNamespace(losses=losses, norms=norms, held=weights_of(rank))


def run_all_on_rank(steps: int, *runs: Change) -> list[SimpleNamespace]:
    return [run_on_rank(change, steps) for change in runs]


def train_runs(steps: int, runs: Mapping[str, Change] = RUNS) -> dict[str, SimpleNamespace]:
    """Each run on 8 ranks: its losses and gradient norms, and ``held``, what each rank holds after the last step."""
    ranks = launch(run_all_on_rank, ranks=8, args=(steps, *runs.values()), quiet=True)
    return {
        name: SimpleNamespace(losses=of[0].losses, norms=of[0].norms, held=[rank.held for rank in of])
        for name, of in zip(runs, zip(*ranks, strict=True), strict=True)
    }


def counts_of_targets(line: str) -> list[str]:
    """How much a target of each dp rank counts in the gradient, with this line in the place of run B's.

    Raises:
        Refused: it is no line from which backward can start.
    """
    counts, each = [], targets_of_dp()
    for own in each:
        loss = torch.ones((), dtype=torch.double, requires_grad=True)
        here = {"loss": loss, "own": own, "of_all": sum(each), "self": SimpleNamespace(sizes=SIZES)}
        try:
            exec(line, {}, here)
            (gradient,) = torch.autograd.grad(here["y"], loss)
        except Exception:
            raise Refused(
                f'{line!r} does not run here: divide loss by a number, with own, of_all or self.sizes["dp"]'
            ) from None
        counts.append(str(Fraction(gradient.item()).limit_denominator(10**5)))
    return counts


def weights_of(held: Any) -> Weights:
    """What this rank would write into a checkpoint: its weights, and the dimension in which each is cut."""
    return {name: (w.detach().clone(), getattr(w, "cut", None)) for name, w in held.parameters().items()}


def loss_after_loading(ranks: list[Weights], steps: int, tied: bool = True) -> float:
    """One device reads a checkpoint in which each weight stands once, and computes the loss of the batch of a step.

    Args:
        ranks: what each rank held. Where several hold a weight, that of the first is in the file.
        steps: the batch is the last one of so many.
        tied: the embedding stands once, too. Otherwise the last stage's copy is in the file beside the first's.
    """
    whole: dict[str, Tensor] = {}
    for rank in range(0, len(ranks), SIZES["tp"]):
        for name, (w, dim) in ranks[rank].items():
            parts = [w] if dim is None else [held[name][0] for held in ranks[rank : rank + SIZES["tp"]]]
            whole.setdefault(name, torch.cat(parts, dim or 0))
    if tied:
        whole["head.weight"] = whole["embedding.tokens.weight"]
    model = GPT(replace(CONFIG, tie_embeddings=tied))
    model.load_state_dict(whole)
    *_, (tokens, targets) = text_batches(steps)
    with torch.no_grad():
        return cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).item()
