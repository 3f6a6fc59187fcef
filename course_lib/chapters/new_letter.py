"""Chapter 18: how likely a letter that no task had becomes by training ("!" of the task bang), and why."""

from __future__ import annotations

import random

import torch
from torch.optim.lr_scheduler import LambdaLR

from course_lib.chapters.own_task import written
from course_lib.chapters.virtual_places import COLOURS
from course_lib.comparison.finetuning.selection.kept import BATCH, STEPS, kept_lines
from course_lib.comparison.finetuning.selection.methods import METHODS
from course_lib.data.task_gpt import load_task_gpt
from course_lib.data.text_tasks import ASK, BEGIN, VOCABULARY, samples
from course_lib.observe.show.shown import Shown
from course_lib.observe.show.tables import table
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.schedule import warmed_up
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, bare

EVERY = 10  # steps between two values
METHOD = {"prompt": "prompt", "prefix": "p-tuning-v2", "LoRA": "lora-r1"}  # of the kept runs
# The last values of ``record`` under seed 0. The other seeds' last values of "!" lie within 4 points.
KEPT = {"prompt": (1.1, 97.3, 2.4), "prefix": (1.9, 99.8, 2.4), "LoRA": (28.8, 97.9, 1.9)}


def plot_new_letter() -> Picture:
    """After training, for each method: the chances of "!", of all other letters that were never written, and of those
    that were; beside them "!" and its likeliest rival."""
    from matplotlib.figure import Figure
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    figure = Figure(figsize=(WIDTH, 2.2), layout="constrained")
    axis, said = figure.subplots(), []
    for row, name in enumerate(METHOD):
        mark, new, rival = KEPT[name]
        parts = {"!": mark, "the other new letters": new - mark, "old letters": 100 - new}
        left = 0.0
        for amount, colour in zip(parts.values(), (COLOURS[name], "#dcdcdc", "#222222"), strict=True):
            axis.barh(row, amount, 0.62, left=left, color=colour)
            left += amount
        beside = f"! {mark} %, likeliest other {rival} %"
        axis.text(101, row, beside, va="center", fontsize=TEXT)
        said.append(
            f"{name}: {', '.join(f'{part} {amount:.1f} %' for part, amount in parts.items())} ({beside})"
        )
    axis.set(xlim=(0, 145), xticks=[], ylim=(len(METHOD) - 0.6, -0.5))
    axis.set_yticks(range(len(METHOD)), METHOD)
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    keys = [tuple(Patch(facecolor=COLOURS[name]) for name in METHOD)]
    keys += [Patch(facecolor="#dcdcdc"), Patch(facecolor="#222222")]
    figure.legend(
        keys,
        parts,
        handler_map={tuple: HandlerTuple(ndivide=None)},
        loc="outside upper left",
        ncols=3,
        frameon=False,
        fontsize=TEXT,
    )
    return render(figure, f"What is the likeliest letter after open file? {'; '.join(said)}.")


def alike(letter: str, others: str) -> Shown:
    """How alike the rows of the head are that score letters: the cosine of the angle between them."""
    rows = torch.nn.functional.normalize(load_task_gpt().get_parameter("head.weight").detach(), dim=1)
    return table(
        ["two letters", "cosine of their rows"],
        [[f"{letter} {other}", f"{rows[ord(letter)] @ rows[ord(other)]:.2f}"] for other in others],
    )


def record(name: str, seed: int = 0, until: int = STEPS) -> list[tuple[float, float, float]]:
    """Trains on bang as the kept runs do, and looks every ``EVERY`` steps after ``:open file>open file``.

    Returns:
        The probability of "!", of all letters together that no known task writes, and of the likeliest letter
        beside "!", in percent.
    """
    method, model = METHOD[name], load_task_gpt().train()
    torch.manual_seed(seed)
    METHODS[method].adapt(model, seed)
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], lr=kept_lines()["bang", method].lr
    )
    schedule = LambdaLR(optimizer, lambda done: warmed_up(done, STEPS))
    values, seeds = [likely(model)], random.Random(seed)
    for step in range(until):
        tokens, targets = samples("bang", "train", BATCH, seed=seeds.getrandbits(32))
        optimizer.zero_grad()
        cross_entropy(model(tokens), targets).backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % EVERY == 0:
            values.append(likely(model))
    return values


@torch.no_grad()
def likely(model: torch.nn.Module) -> tuple[float, float, float]:
    tokens = torch.tensor([[*f"{BEGIN}open file{ASK}open file".encode()]])
    chances = model(tokens)[0, -1].softmax(-1)
    unused = [i for i in range(VOCABULARY) if chr(i) not in written()]
    amounts = (
        chances[ord("!")],
        chances[unused].sum(),
        chances[[i for i in range(VOCABULARY) if i != ord("!")]].max(),
    )
    new, together, other = (round(100 * amount.item(), 1) for amount in amounts)
    return new, together, other
