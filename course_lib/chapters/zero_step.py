"""A step of data parallelism by hand, DDP or a stage of ZeRO, in two ledgers: memory and traffic (chapter 06)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import AdamW

from course_lib.data_parallel.flat import storage_bytes
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from simulator.ledgers.memory import MemoryBreakdown
from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, WIDTH, plain_axes

COLOURS = {
    "DDP": "#8a8a8a",
    "stage 1": "#b5496b",
    "stage 2": PARTS[4],
    "stage 3": PARTS[5],
}  # none of memory's, nor the green of right numbers
RED = "#c00000"


class Step(NamedTuple):
    """Of one rank.

    Args:
        kept: bytes at the end of backward.
        gradients: bytes in ``.grad`` each time that backward has completed one, and each time that some are freed.
        phases: bytes sent in all forwards, in all backwards, and once after them.
    """

    kept: MemoryBreakdown
    gradients: list[float]
    phases: tuple[float, float, float]

    @property
    def sent(self) -> float:
        """Bytes, from forward to the next step's forward."""
        return sum(self.phases)


def zero_step(rung: Any, x: Tensor, y: Tensor, passes: int = 1) -> Step:
    """The second step of a small GPT with AdamW, when its states exist; every rank calls it.

    Args:
        rung: ``PerParameter`` of ``course_lib.by_hand.ddp``, or a stage of ``course_lib.by_hand.zero``.
        x, y: the batch of all ranks, (sequences, tokens).
        passes: backward passes before the update.
    """
    torch.manual_seed(0)
    model = GPT(GPTConfig.tiny())
    parameters, gradients, sharded = list(model.parameters()), [], "Zero" in rung.__name__
    # Before the stage's own hooks, which may free gradients, and after them.
    note(parameters, lambda: gradients.append(storage_bytes(grads(trained))))
    zero = rung(model, model.blocks) if sharded else rung(model)
    note(parameters, lambda: gradients.append(storage_bytes(grads(trained))))
    trained = [*parameters, *(zero.shards() if sharded else ())]
    optimizer = AdamW(zero.shards() if sharded else parameters)
    mine = [part.chunk(dist.get_world_size())[dist.get_rank()] for part in (x, y)]
    for _ in range(2):
        gradients.clear()
        forward = backward = 0.0
        with record_traffic() as log:
            for _ in range(passes):
                before = log.traffic.sent
                loss = cross_entropy(model(mine[0]), mine[1])
                between = log.traffic.sent
                loss.backward()
                forward, backward = forward + between - before, backward + log.traffic.sent - between
            states = [value for state in optimizer.state.values() for value in state.values()]
            kept = MemoryBreakdown(*map(storage_bytes, (trained, grads(trained), states)))
            zero.after_backward() if sharded else zero.average()
            optimizer.step()
            optimizer.zero_grad()
            if sharded:
                zero.after_update()
    return Step(kept, gradients, (forward, backward, log.traffic.sent - forward - backward))


def plot_gradients(steps: Mapping[str, Step], block: float) -> Picture:
    """What ``.grad`` holds in backward until block 1 is reduced, in blocks; each fall is named after its block.

    Args:
        steps: by stage, each on a model of four blocks; the first is drawn last, and its falls are named.
        block: bytes of the gradients of one block.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axis = figure.subplots()
    curves = {name: [size / block for size in step.gradients] for name, step in steps.items()}
    drawn_last = next(iter(curves))
    first = curves[drawn_last]
    falls = [i for i in range(len(first) - 1) if first[i + 1] < first[i] - 0.5]
    stop = falls[-1] + 2 if falls else len(first)
    curves = {name: curve[:stop] for name, curve in curves.items()}
    for name, curve in reversed(curves.items()):
        width = 3 if name == drawn_last else 7  # seen on both sides of the first where the two are equal
        axis.plot(curve, color=COLOURS[name], linewidth=width, label=name)
    for i, unit in zip(falls, (4, 3, 2, 1), strict=False):
        end, up = (i, first[i]), (0, 5)  # points
        said = f"block {unit}"
        axis.annotate(said, end, up, textcoords="offset points", ha="right", va="bottom", fontsize=TEXT)
    for name, curve in curves.items():
        end, right = (len(curve) - 1, curve[-1]), (6, 0)  # points
        axis.annotate(name, end, right, textcoords="offset points", va="center", fontsize=TEXT)
    axis.set(ylim=(0, None), xlim=(0, 1.1 * stop), xticks=[])
    axis.set_xlabel("backward through the four blocks", fontsize=TEXT)
    axis.set_ylabel("gradients held, in blocks", fontsize=TEXT)
    plain_axes(axis)
    told = (f"{name} at most {max(curve):.3g}, at the end {curve[-1]:.3g}" for name, curve in curves.items())
    return render(figure, f"Gradients that a rank holds in one backward, in blocks: {'; '.join(told)}.")


def plot_halves(rows: Mapping[str, Sequence[str]]) -> Picture:
    """What a step sends: a row for each stage, in it a box for each half of an all-reduce, with what it moves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 0.3 + 0.55 * len(rows)), layout="constrained")
    draw_halves(figure.subplots(), {name: [(said, 1) for said in boxes] for name, boxes in rows.items()})
    told = (f"{name}: {', '.join(boxes)}".replace("\n", " ") for name, boxes in rows.items())
    return render(figure, f"Sent in a step of one pass. {'; '.join(told)}.")


def draw_halves(axis: Any, rows: Mapping[str, Sequence[tuple[str, float]]], most: float = math.inf) -> None:
    """Boxes with what they move and their size in halves; what is sent beyond ``most`` halves is red."""
    totals = {name: sum(size for _, size in boxes) for name, boxes in rows.items()}
    for row, (name, boxes) in enumerate(rows.items()):
        left = 0.0
        for said, size in boxes:
            axis.barh(row, size, 0.72, left=left, color=COLOURS[name], edgecolor="white", linewidth=2)
            axis.text(left + size / 2, row, said, ha="center", va="center", color="white", fontsize=TEXT)
            left += size
        more = max(0, left - most)
        axis.barh(row, more, 0.72, left=most if more else 0, color=RED)
        colour = RED if more else "black"
        axis.text(left + 0.05, row, f"{left:.3g} halves", va="center", color=colour, fontsize=TEXT)
    axis.set(xlim=(0, 0.5 + max(3, *totals.values())), xticks=[])
    axis.set_yticks(range(len(rows)), list(rows), fontsize=TEXT)
    axis.tick_params(length=0)
    axis.invert_yaxis()
    axis.spines[:].set_visible(False)


def note(parameters: Iterable[Tensor], call: Any) -> None:
    for w in parameters:
        w.register_post_accumulate_grad_hook(lambda _: call())


def grads(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [t.grad for t in tensors if t.grad is not None]
