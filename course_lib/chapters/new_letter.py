"""Chapter 18: how likely a letter that no task had becomes, while it is trained: "!" of the task bang."""

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
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.schedule import warmed_up
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

EVERY = 10  # steps between two values
METHOD = {"prompt": "prompt", "prefix": "p-tuning-v2", "LoRA": "lora-r1"}  # of the kept runs
# What ``record`` gave under seed 0. The other seeds' last values of "!" lie within 4 points.
KEPT = {
    "prompt": [0.0, 0.0, 0.0, 0.7, 1.0, 1.1, 1.1, 1.1, 1.1, 1.1, 1.1],
    "prefix": [0.0, 0.0, 1.0, 1.1, 1.3, 1.3, 1.5, 1.5, 1.7, 1.8, 1.9],
    "LoRA": [0.0, 0.0, 0.8, 0.2, 2.6, 6.9, 13.6, 22.9, 25.8, 28.2, 28.8],
}
OTHER = {"prompt": 2, "prefix": 2, "LoRA": 2}  # percent of the likeliest letter beside "!", at the end
UNUSED = {"prompt": 97, "prefix": 100}  # of all that no known task writes, at the end


def plot_new_letter() -> Picture:
    """The kept curves, each in its method's colour."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axis = figure.subplots()
    last = STEPS + 1
    for name, values in KEPT.items():
        axis.plot(range(0, last, EVERY), values, color=COLOURS[name], linewidth=2.5)
        above = {"prefix": 5, "prompt": -5}.get(name, 0)  # points, since these two end close together
        says = f"{name}: {values[-1]:.0f} %"
        axis.annotate(
            says, (STEPS, values[-1]), (6, above), textcoords="offset points", va="center", fontsize=TEXT
        )
    axis.set(xlim=(0, 1.25 * STEPS), ylim=(-2.5, None), xticks=range(0, last, 2 * EVERY))
    axis.set_xlabel("step", fontsize=TEXT)
    axis.set_ylabel("probability of !, %", fontsize=TEXT)
    plain_axes(axis)
    ends = ", ".join(f"{name} {values[-1]:.0f} %" for name, values in KEPT.items())
    return render(
        figure,
        f"The probability of ! after open file over {STEPS} steps. All start at 0; they end at: {ends}.",
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
